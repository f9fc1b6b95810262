"""Levels of evidence: what each draws, how one unit of it is measured, and what its pilot says."""
