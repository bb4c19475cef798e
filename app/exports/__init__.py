"""Exports: from a winner to the files with which another program launches it."""
