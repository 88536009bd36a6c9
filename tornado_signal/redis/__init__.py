"""A client of Redis and Valkey: a single node, one that Sentinels watch, or a cluster."""
