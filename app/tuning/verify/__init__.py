"""Whether it is right: tolerances, adversarial operands, emulated precision."""
