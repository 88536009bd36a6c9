"""Limits for each client and for all of them, and the client's address behind proxies. No I/O; time is an argument."""
