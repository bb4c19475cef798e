"""Tilewise: finds the tile size that makes each matrix product fast, proves it, and serves the products."""

__version__ = "0.1.0"
