"""Limits per client and for all clients, and client addresses behind proxies. No I/O. Time is an argument."""
