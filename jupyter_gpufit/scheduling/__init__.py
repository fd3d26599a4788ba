"""Stages B and C, and the ledger: which node a request goes to, and who holds what."""
