"""`jupyter gpufit …`."""
