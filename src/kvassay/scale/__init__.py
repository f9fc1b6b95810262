"""A matrix of models, formats, workloads and seeds, split into cells that any number of machines run."""
