"""python -m app.cli: the command line where no console script is installed."""

from __future__ import annotations

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main())
