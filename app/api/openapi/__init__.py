"""The OpenAPI document, and the routes that it tells of."""
