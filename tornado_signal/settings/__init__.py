"""The settings, their value types and their sources."""
