"""Stage E, interactive: a kernel in the allocation, and the notebook that attaches to it."""
