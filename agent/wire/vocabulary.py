"""The words that an agent's options take. Facts only."""

from __future__ import annotations

OPEN, LOCAL, CLOSED = "open", "local", "closed"
OPENNESS = (OPEN, LOCAL, CLOSED)
"""Who may infer, and read what models look like, without the credential: everybody, this machine's programs, nobody."""
TRANSPORTS = ("tcp", "mqtt")
"""How members reach each other."""
