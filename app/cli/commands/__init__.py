"""The commands' own modules: options, what is asked of a session, what is printed."""
