"""Products in tiles: how C is cut, in which order a device makes its tiles, and what it copies beside each."""
