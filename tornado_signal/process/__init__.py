"""The server process: startup, reload and shutdown, and a supervisor for several processes on one port."""
