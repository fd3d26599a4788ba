"""Real Docker engines as the hosts of a cluster, all on this machine. See README.md."""
