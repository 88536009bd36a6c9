"""The signaling protocols of other libraries, which store nothing (docs/decisions.md#other-protocols)."""
