"""`kill -9` of the server at every step of its work."""
