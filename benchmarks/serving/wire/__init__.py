"""How fast bytes come in and go out."""
