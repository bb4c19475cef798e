"""Scripts that measured every figure of the pages, as modules: python -m benchmarks.FOLDER.NAME."""
