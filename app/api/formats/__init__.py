"""How matrices travel: one file per format. Nothing here knows HTTP's headers or the service."""
