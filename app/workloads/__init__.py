"""Which products a program runs: traces, logs, lists and models read into counted problems."""
