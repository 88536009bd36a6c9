"""What can be configured, and where it comes from."""
