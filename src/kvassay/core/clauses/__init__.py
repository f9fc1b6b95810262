"""Sections of a contract, one file a level."""
