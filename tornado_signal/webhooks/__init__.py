"""Webhooks: events of sessions and connections, sent in batches to one URL (docs/webhooks.md)."""

from .sender import Webhooks
from .target import Target, open_target, unencrypted

__all__ = ["Target", "Webhooks", "open_target", "unencrypted"]
