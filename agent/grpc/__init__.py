"""The gRPC server: the Open Inference Protocol in protobuf's messages, in front of the gateway's service.

May import: agent/api, agent/gateway, agent/host, agent/trace, agent/wire, planner/errors.
"""

__all__ = ["door"]
