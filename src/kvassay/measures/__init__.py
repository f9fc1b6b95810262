"""What is measured: token distributions, task items, tensors and attention outputs."""
