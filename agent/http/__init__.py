"""The HTTP handlers: inference by the Open Inference Protocol, text by OpenAI's, uploads, management and metrics.

May import: agent/api, agent/chronicle, agent/host, agent/http/page, agent/text, agent/trace, agent/wire, planner/errors,
planner/plans, planner/vocabulary.
"""

__all__ = [
    "answers",
    "bodies",
    "buffers",
    "deliveries",
    "event_streams",
    "oip_elements",
    "rate_limit",
    "server",
    "v2",
]
