"""The HTTP handlers: inference by the Open Inference Protocol, text by OpenAI's, uploads, management and metrics.

May import: agent/api, agent/chronicle, agent/gateway, agent/host, agent/http/page, agent/text, agent/trace,
agent/wire, planner/errors, planner/vocabulary.
"""

__all__ = ["answers", "bodies", "buffers", "deliveries", "event_streams", "server"]
