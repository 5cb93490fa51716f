"""What an agent does not load: a small box waits for it at each start, and it stays in memory for months."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

KEPT_OUT = {"onnx", "onnxruntime", "networkx", "typer", "rich", "jinja2", "tokenizers", "paho.mqtt.client"}
"""Libraries of the processes beside the agent, of the command line, and of what few agents use."""


KEPT_OUT_OF_THE_COMMAND = KEPT_OUT - {"typer"} | {
    "aiohttp",
    "asyncio",
    "cryptography",
    "numpy",
    "psutil",
    "ssl",
}
"""Libraries that the command which becomes the agent does not need, and which the agent would then import again."""


def test_an_agent_that_starts_loads_no_library_of_others() -> None:
    modules = "edgepart.cli.agent", "edgepart.agent.service"
    assert loaded(modules, KEPT_OUT | {"asyncio"}) == ["asyncio"]


def test_nor_does_the_command_that_becomes_it() -> None:
    modules = (
        "edgepart.cli.main",
        "edgepart.cli.agent_command",
        "edgepart.agent.security.ciphers",
        "edgepart.agent.storage.atomic_files",
    )
    assert loaded(modules, KEPT_OUT_OF_THE_COMMAND | {"typer"}) == ["typer"]


def loaded(modules: Iterable[str], libraries: Iterable[str]) -> list[str]:
    """Those of the libraries that a fresh interpreter has once it has imported the modules."""
    code = f"import sys, {', '.join(modules)}\nprint(*sorted(set(sys.argv[1:]) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code, *libraries], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()
