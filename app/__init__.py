"""Tilewise: finds the tile size that makes each matrix product fast, proves it, and serves the products."""
