"""The process: what it is wired of, how it starts, reloads and stops, and several of them on one port."""
