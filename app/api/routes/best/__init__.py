"""Winners over HTTP: of a problem, and over a range of m."""
