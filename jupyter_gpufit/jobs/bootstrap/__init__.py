"""What runs in a job's unit; not imported here."""
