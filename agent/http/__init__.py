"""The HTTP handlers: inference by the Open Inference Protocol, text by OpenAI's, uploads, management, metrics and the
dashboard.

May import: agent/api, agent/host, agent/text, agent/trace, agent/wire, planner/errors, planner/plans, planner/vocabulary.
"""

__all__ = ["bodies", "buffers", "oip_elements", "server"]
