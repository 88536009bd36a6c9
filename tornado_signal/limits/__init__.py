"""Who may ask for how much, and who the client is behind proxies. No I/O; time is an argument."""
