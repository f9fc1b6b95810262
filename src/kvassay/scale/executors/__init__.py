"""Ways to run a matrix: in this process, in processes of this machine, under Slurm, on Ray."""
