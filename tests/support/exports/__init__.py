"""What the tests of exports share."""
