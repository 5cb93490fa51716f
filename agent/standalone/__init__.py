"""The stand-alone form of a plan: files that need edgepart no longer. Each device's part is ONNX models with their
weights and a schedule; a short program (run.py), which goes with them, runs them with onnxruntime and numpy alone. They are
written where the user has the model: by the command line and the Python API, never by an agent.

May import: agent/execution, agent/wire, planner/errors, planner/model, planner/plans, planner/region.
"""

__all__ = ["folder"]
