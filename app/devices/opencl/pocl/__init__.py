"""Workarounds for PoCL's wheel: a linker, the CPU name for LLVM, the built-in library."""
