"""Learning: placers that a network guides, and what makes such networks.

May import: .
"""

__all__: list[str] = []
