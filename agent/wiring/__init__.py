"""Wiring: makes the parts of an agent and connects them; service.py starts and stops them.

The parts come in four groups, each made from those before it: the base (this device's identity and its state
folder), the links to other agents, the parts that compute requests here, and the cluster's logic with the doors for
clients in front of it. Later events (a frame, a lost link, a crashed model) are reported to the agent, through its
`Reactions`.

May import: agent/admission, agent/api, agent/chronicle, agent/cluster/core, agent/cluster/membership,
agent/cluster/state, agent/discovery, agent/doctor, agent/driver, agent/engines, agent/execution,
agent/execution/compile, agent/gateway, agent/grpc, agent/host, agent/http, agent/maintenance, agent/measure, agent/net,
agent/options, agent/planwork, agent/replication, agent/security, agent/serving, agent/state_files, agent/storage,
agent/text, agent/trace, agent/verify, agent/wire, agent/workers, planner/devices.
"""

__all__ = ["base", "computation", "links", "logic"]
