"""Guided placement: what placers compute around the networks that guide them.

May import: .
"""

__all__: list[str] = []
