"""Stories import the simulated cluster from here."""

from tests.simulation.cluster import SimNet, node_id
from tests.simulation.disk import MODEL
from tests.simulation.trace import Broken

__all__ = ["MODEL", "Broken", "SimNet", "node_id"]
