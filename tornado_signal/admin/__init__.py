"""The admin listener: health, metrics and maintenance."""
