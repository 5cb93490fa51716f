"""The client of a cluster: HTTP to any member, and to another one when that is gone. The Python API and the command line.

    import edgepart

    with edgepart.connect() as client:
        answer = client.infer("photos", photo)

connecting.py has `connect` and `connect_async`, client.py the class for programs without asyncio, async_client.py the class
for asyncio, and offline.py `edgepart.plan` and `edgepart.export`, which need no cluster. A client needs neither onnx nor
ONNX Runtime; `deploy`, `plan` and `export` read models, and import onnx for it; weights.py starts processes that use ONNX
Runtime.

May import: agent/api, agent/cluster/state, agent/engines, agent/gateway, agent/http, agent/options, agent/quantise,
agent/security, agent/standalone, agent/text, agent/trace, agent/wire, planner/devices, planner/errors, planner/figures,
planner/json_text, planner/access, planner/layout, planner/model, planner/planner, planner/plans, planner/region,
planner/report, planner/search, planner/simulation, planner/tdl, planner/vocabulary.
"""

__all__ = [
    "addresses",
    "async_client",
    "conversation",
    "deploying",
    "described_files",
    "event_stream",
    "failures",
    "members",
    "model_files",
    "offline",
    "perfetto",
    "pictures",
    "records",
    "target",
    "trace_records",
    "weights",
]
