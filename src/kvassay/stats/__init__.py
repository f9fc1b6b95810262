"""Statistics of the quality contract, one estimator a file. numpy and scipy.special only; deterministic for a seed."""
