"""What PoCL's wheel needs around it: a linker, a processor's name, its built-in library."""
