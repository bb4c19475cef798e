"""Trials in a worker: compile, verify and time configs."""
