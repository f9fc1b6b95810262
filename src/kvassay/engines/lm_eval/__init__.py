"""lm-evaluation-harness over kvassay's cache. `python -m kvassay.engines.lm_eval` is its command with our model."""
