"""Tokens per second of a model in decoding with different caches, arms in turns in one process."""
