"""Opaque results of other tuners, by principal, namespace and key."""
