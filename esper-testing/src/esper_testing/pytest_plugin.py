"""What does pytest learn from Esper? Checks of a plugin without a test file, and fixtures."""
