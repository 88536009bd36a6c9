"""The operator's listener, page, status and actions, and the commands admin, check and health."""
