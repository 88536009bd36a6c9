"""Webhooks: events of sessions and connections, sent in batches to one URL (docs/webhooks.md)."""

from .sender import Webhooks
from .target import Target, make_target, unencrypted

__all__ = ["Target", "Webhooks", "make_target", "unencrypted"]
