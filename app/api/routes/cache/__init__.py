"""Opaque results of other tuners over HTTP."""
