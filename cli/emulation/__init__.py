"""Emulation of slow boxes on one machine, for the demo and the tests. The product does not know about it."""

__all__ = ["sitecustomize"]
