"""Sockets, the service manager, TLS, logs and the clock: what the process needs of the machine."""
