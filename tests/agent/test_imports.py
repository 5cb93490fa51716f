"""What an agent does not load: a small box waits for it at each start, and it stays in memory for months."""

from __future__ import annotations

import subprocess
import sys

KEPT_OUT = {"onnx", "onnxruntime", "networkx", "typer", "rich", "jinja2", "tokenizers", "paho.mqtt.client"}
"""Libraries of the processes beside the agent, of the command line, and of what few agents use."""


def test_an_agent_that_starts_loads_no_library_of_others() -> None:
    code = (
        "import sys, edgepart.cli.agent, edgepart.agent.service\n"
        "print(*sorted(set(sys.argv[1:]) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *KEPT_OUT, "asyncio"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["asyncio"], done.stderr
