"""Workloads: text corpora and generated tasks. No torch: a tokenizer is passed in."""
