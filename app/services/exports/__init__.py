"""Winners to take away: found, compiled, and written as files of a target."""
