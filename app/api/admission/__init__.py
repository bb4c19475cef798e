"""What is asked of a request's head before the application sees it: who asks, and whether there is room."""
