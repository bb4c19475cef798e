"""The routes: one module a resource."""
