"""Stage A, on the node: what its GPUs are and how they are used."""
