"""Requests to servers that the operator names: webhooks (docs/webhooks.md), and TURN providers (docs/turn.md)."""
