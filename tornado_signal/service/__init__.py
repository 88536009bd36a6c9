"""Every operation of the service, once: its name, its parameters, its result, and its call on the store."""
