"""Weights of few bits: a model is made into one that is smaller, before it is sent, and how far its answers are off is
measured. It runs where the user has the model: in the command line and in the Python API, never in an agent.

May import: agent/planwork, agent/text, agent/verify, agent/wire, planner/errors, planner/figures, planner/model,
planner/region, planner/vocabulary.
"""

__all__ = ["quantised_model"]
