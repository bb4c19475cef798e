"""Winners as files of other programs, over HTTP."""
