"""The operator's listener: health, metrics, maintenance."""
