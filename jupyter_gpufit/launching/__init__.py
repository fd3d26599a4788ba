"""Stage D: start and stop what runs in an allocation."""
