"""Engines: each attaches to a runtime and says what it can measure there."""
