"""Stage A, centrally: ask every node on its monitoring period, and keep what they said."""
