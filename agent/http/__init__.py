"""The HTTP handlers: inference by the Open Inference Protocol, text by OpenAI's, uploads, management, metrics and the
dashboard.

May import: agent/api, agent/gateway, agent/host, agent/text, agent/trace, agent/wire, planner/errors, planner/vocabulary.
"""

__all__ = ["buffers", "server"]
