"""The values that an agent's options can have. Facts only."""

from __future__ import annotations

OPEN, LOCAL, CLOSED = "open", "local", "closed"
OPENNESS = (OPEN, LOCAL, CLOSED)
"""The settings of who may infer, and see the models' inputs and outputs, without the credential: everybody, programs of
this machine, or nobody."""
TRANSPORTS = ("tcp", "mqtt")
"""The ways in which members can reach each other."""
MOST_BATCH_DELAY_S = 10.0
"""The longest time, in seconds, for which a user can have a request wait for others in its batch."""
