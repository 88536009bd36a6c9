"""Backup, restore, inspect, check, compact and repair: the data directory's commands."""
