"""Opens files in folders of runs, which may be damaged, or made by somebody else."""
