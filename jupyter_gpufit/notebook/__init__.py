"""What people use in a notebook: the `%gpufit` magic and the client under it."""
