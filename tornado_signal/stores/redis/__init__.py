"""The sessions on Redis or Valkey: a single node, Sentinel's, or a cluster, shared by any number of processes."""
