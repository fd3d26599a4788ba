"""The Jupyter server extension: REST and events."""
