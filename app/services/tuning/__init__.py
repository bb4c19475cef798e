"""Tune jobs: their queue, their execution, and the records of what was tried."""
