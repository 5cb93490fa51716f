"""What a person types: each command's output and exit status, in process, against a real server with a fake
node."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer import Context
from typer.main import get_command

from edgepart.agent.api.model_card import BindingStatus, SequenceFigures
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.cli import options, output, tensors, verification
from edgepart.cli.main import COMMANDS, app, main
from edgepart.client import model_files
from edgepart.client.target import target_of
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.devices.cluster_json import cluster_to_json
from edgepart.planner.errors import RequestError, UsageError
from tests.agent.http.conftest import CREDENTIAL, Served, served
from tests.agent.http.fakes import NO_ROOM, A, add_model

__all__ = ["served"]


async def _event() -> asyncio.Event:
    return asyncio.Event()


Edgepart = Callable[..., tuple[int, str, str]]


def beside(program: str, arguments: list[str]) -> None:
    """Instead of becoming another program, in this process: to run it, and end as it does."""
    sys.exit(subprocess.run(arguments, executable=program, timeout=60).returncode)


@pytest.fixture
def edgepart(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Edgepart:
    """Runs a command in this process; gives its exit status, stdout and stderr."""
    for name in ("EDGEPART_AGENT", "EDGEPART_STATE", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", beside)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def member(served: Served, tmp_path: Path) -> Path:
    """A state directory whose agent is the served one, and which holds its credential."""
    from edgepart.agent.security import identity

    state = tmp_path / "state"
    made = identity.create_cluster(state, 0.0)
    (made.directory / "admin").write_text(CREDENTIAL)
    (state / "agent.json").write_text(json.dumps({"name": "pi-a", "pid": os.getpid(), "http": served.url}))
    return state


def document(result: tuple[int, str, str]) -> Any:
    status, out, err = result
    assert status == 0, err
    return json.loads(out)


# The command itself


def test_help_imports_nothing_heavy() -> None:
    """A person who asks for help should not wait for ONNX Runtime."""
    code = (
        "import sys; from edgepart.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'onnx', 'onnxruntime', 'aiohttp', 'numpy', 'zeroconf', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for command in (
        "init",
        "join",
        "token",
        "agent",
        "deploy",
        "undeploy",
        "infer",
        "bench",
        "status",
        "plan",
        "revoke",
        "credential",
        "ca",
    ):
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [("--version", ""), ("init --help", " membership"), ("agent --help", " agent_command")],
)
def test_a_command_does_not_import_the_others(arguments: str, imported: str) -> None:
    """A start of the agent on a small box would wait for all of them."""
    code = (
        "import sys; from edgepart.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"commands = {[f'edgepart.cli.{name}' for name in ('membership', 'agent_command', 'deployment', 'demo')]}\n"
        "print('imported:', *(name[13:] for name in commands if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == f"imported:{imported}\n"


def test_each_command_is_where_the_table_says() -> None:
    group: Any = get_command(app)
    for name in COMMANDS:
        assert group.get_command(Context(group), name).name == name
    assert group.get_command(Context(group), "unknown") is None


def test_version(edgepart: Edgepart) -> None:
    from edgepart import __version__

    assert edgepart("--version") == (0, f"edgepart {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["status", "--sideways"],
        ["deploy"],
        ["status", "--watch", "--json"],
        ["status", "--agent", "ftp://x"],
        ["status", "--agent", "http://x/path"],
        ["agent", "--listen", "nowhere"],
        ["agent", "--name", "-x"],
        ["agent", "--threads", "0"],
        ["agent", "--memory-limit", "much"],
        ["agent", "--log-level", "loud"],
        ["token", "create", "--ttl", "soon"],
        ["join", "no-token"],
        ["agent", "--inference", "perhaps"],
        ["agent", "--client-rate", "0"],
        ["revoke"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--axis", "time"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--objective", "joy"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--strategy", "quick"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--timeout", "soon"],
        ["deploy", "m.onnx", "--agent", "localhost:1"],
        ["check", "m.onnx"],
        ["plan", "m.onnx"],
        ["plan", "m.onnx", "--strategy", "quick"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--shape", "x"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--search-budget", "0"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--search-budget", "-1"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--search-budget", "nan"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--search-budget", "1e9"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--batch", "0"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--batch", "1000"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--batch-delay", "5"],
        ["deploy", "m.onnx", "--agent", "localhost:1", "--batch-delay", "11s"],
        ["agent", "--compiled", "much"],
        ["agent", "--profile-budget", "-1"],
        ["agent", "--profile-budget", "nan"],
        ["agent", "--profile-budget", "601"],
        ["infer", "m", "--agent", "localhost:1"],
    ],
)
def test_wrong_usage_exits_2(edgepart: Edgepart, arguments: list[str]) -> None:
    status, out, err = edgepart(*arguments)
    assert status == 2
    assert err and "Traceback" not in err
    assert not out or json.loads(out)["kind"] == "UsageError"


def test_no_agent_is_said_plainly(edgepart: Edgepart) -> None:
    status, out, err = edgepart("status")
    assert status == 1
    assert err.startswith("error: no agent runs") and "edgepart agent" in err
    status, out, err = edgepart("status", "--json")
    assert json.loads(out)["kind"] == "Unavailable"


def test_an_agent_that_is_gone(edgepart: Edgepart) -> None:
    status, _, err = edgepart("status", "--agent", "http://127.0.0.1:9")
    assert status == 1
    assert "cannot be reached" in err


# Clusters


def test_init_and_tokens(edgepart: Edgepart, tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "s")]
    made = document(edgepart("init", *state, "--name", "pi-a", "--json"))
    assert made["token"].startswith(f"EP1-{made['fingerprint']}-")
    assert options.recall_name(tmp_path / "s") == "pi-a"
    again = edgepart("init", *state)
    assert again[0] == 2 and "already" in again[2]
    token = document(edgepart("token", "create", *state, "--uses", "3", "--ttl", "30m", "--json"))
    listed = document(edgepart("token", "list", *state, "--json"))["tokens"]
    assert [card["uses"] for card in listed] == [16, 3]
    assert token["token"].rpartition(".")[2] not in json.dumps(listed)
    assert listed[1]["id"] in edgepart("token", "list", *state)[1]
    assert (
        document(edgepart("token", "revoke", token["token"], *state, "--json"))["revoked"] == listed[1]["id"]
    )
    assert edgepart("token", "revoke", "nothing", *state)[0] == 2
    assert len(document(edgepart("token", "list", *state, "--json"))["tokens"]) == 1


def test_init_for_people(edgepart: Edgepart, tmp_path: Path) -> None:
    """What is printed can be copied: with --state, it names the same folder."""
    status, out, _ = edgepart("init", "--state", str(tmp_path / "s"))
    assert status == 0
    assert "edgepart join EP1-" in out and "edgepart agent" in out and f"--state {tmp_path / 's'}" in out
    status, out, _ = edgepart("init")
    assert status == 0 and "--state" not in out


def test_a_bad_name_makes_no_cluster(edgepart: Edgepart, tmp_path: Path) -> None:
    assert edgepart("init", "--state", str(tmp_path / "s"), "--name", "a b")[0] == 2
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "0s", "1w"])
def test_durations(text: str) -> None:
    with pytest.raises(UsageError, match="ttl"):
        options.parse_duration(text)


# Looking


def test_status(edgepart: Edgepart, member: Path) -> None:
    found = document(edgepart("status", "--state", str(member), "--json"))
    assert found["leader"] == "pi-a"
    assert {card["name"] for card in found["deployments"]} >= {"add"}
    _, out, _ = edgepart("status", "--state", str(member))
    assert "pi-a *" in out and "add" in out and "3.1" in out


def test_status_says_where_grpc_is_or_why_it_is_not(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = served.node.status()
    for told, shown in (
        ({}, "-"),
        ({"grpc": None}, "-"),
        ({"grpc": ""}, "none"),
        ({"grpc": "h:8434"}, "h:8434"),
    ):
        members = [one | told for one in known["members"]]
        monkeypatch.setattr(served.node, "status", lambda members=members: known | {"members": members})
        (row,) = [
            line for line in edgepart("status", "--state", str(member))[1].splitlines() if "pi-a *" in line
        ]
        assert row.split()[-1] == shown
    monkeypatch.setattr(served.node, "status", lambda: known | {"grpc": None, "grpc_trouble": "port taken"})
    assert "pi-a serves no gRPC: port taken" in edgepart("status", "--state", str(member))[1]


def test_status_says_why_a_plan_was_replaced(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "a plan on pi-a, pi-b took 0.9 s, one device alone 0.8 s"
    cards = [replace(card, note=note) for card in served.node.models() if card.name == "add"]
    monkeypatch.setattr(served.node, "models", lambda: cards)
    assert f"add: {note}" in edgepart("status", "--state", str(member))[1]
    (card,) = document(edgepart("status", "--state", str(member), "--json"))["deployments"]
    assert card["note"] == note


def test_models_says_which_losses_are_prepared(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "prepared for" not in edgepart("models", "--state", str(member))[1]
    cards = [replace(card, covered=("pi-a", "pi-b")) for card in served.node.models() if card.name == "add"]
    monkeypatch.setattr(served.node, "models", lambda: cards)
    assert "prepared for the loss of pi-a, pi-b" in edgepart("models", "--state", str(member))[1]
    (card,) = document(edgepart("models", "--state", str(member), "--json"))["models"]
    assert card["covered"] == ["pi-a", "pi-b"]
    cards = [replace(card, covered=("pi-a",), devices=("pi-a", "pi-b")) for card in cards]
    assert "not prepared yet for the loss of pi-b: requests" in edgepart("models", "--state", str(member))[1]


def test_models_says_why_the_plan_of_other_shapes_is_what_it_is(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (
        BindingStatus(
            {"x": (rows, 3)}, "serving", Epoch(1, rows), "single", ("pi-a",), 0.002, f"Plan {rows}."
        )
        for rows in (1, 2)
    )
    cards = [replace(card, bindings=(first, other)) for card in served.node.models() if card.name == "add"]
    monkeypatch.setattr(served.node, "models", lambda: cards)
    lines = [line.strip() for line in edgepart("models", "--state", str(member))[1].splitlines()]
    assert lines[lines.index("shapes x=2,3: pi-a, predicted 2 ms") + 1] == "Plan 2."
    assert "Plan 1." not in lines


def test_status_says_who_is_starved_and_who_was_when_it_fell_silent(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, busy = served.node.status(), "busy: its threads waited 62 % of the time for a CPU"
    rows = [row | {"note": busy, "starved": {"share": 0.62, "lasting": False}} for row in known["members"]]
    lost = [{"name": "pi-x", "node": "f" * 16, "state": "lost", "seconds_ago": 3.0, "note": busy}]
    monkeypatch.setattr(served.node, "status", lambda: known | {"members": rows, "lost": lost})
    out = edgepart("status", "--state", str(member))[1]
    assert f"pi-a: {busy}" in out
    assert f"pi-x fell silent; last it was {busy}" in out
    assert "edgepart_cpu_wait_ratio 0.62" in served.ask("GET", "/metrics").body.decode().splitlines()


def test_status_and_metrics_tell_of_sequences(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "sequences of" not in edgepart("status", "--state", str(member))[1]
    figures = SequenceFigures(1, 2, 4, {"pi-a": 3_000_000, "pi-b": 1_500_000}, 20.74)
    cards = [replace(card, sequences=figures) for card in served.node.models() if card.name == "add"]
    here = {"kept": 3, "bytes": 4500, "evictions": 5, "replays": 6, "batches": 7, "resumed": 8}
    here["mirrored_bytes"] = 900
    known = served.node.status()
    monkeypatch.setattr(served.node, "models", lambda: cards)
    monkeypatch.setattr(served.node, "status", lambda: known | {"sequences": here})

    out = edgepart("status", "--state", str(member))[1]
    (row,) = [line for line in out.splitlines() if "tokens/s" in line]
    assert " ".join(row.split()) == "add 1 2 4 pi-a 3 MB, pi-b 1.5 MB 20.7 tokens/s"

    told = document(edgepart("status", "--state", str(member), "--json"))
    assert told["sequences"] == here
    assert told["deployments"][0]["sequences"] == {
        "under_way": 1,
        "idle": 2,
        "most": 4,
        "state_bytes": {"pi-a": 3_000_000, "pi-b": 1_500_000},
        "tokens_per_s": 20.74,
    }

    lines = served.ask("GET", "/metrics").body.decode().splitlines()
    assert "edgepart_mirrored_state_bytes 900.0" in lines
    assert {line for line in lines if line.startswith(("edgepart_sequence", "edgepart_state_"))} == {
        'edgepart_sequences{model="add",state="under_way"} 1.0',
        'edgepart_sequences{model="add",state="idle"} 2.0',
        "edgepart_sequences_kept 3.0",
        "edgepart_state_bytes 4500.0",
        "edgepart_sequences_evicted_total 5.0",
        "edgepart_sequence_batches_total 7.0",
        "edgepart_sequence_replays_total 6.0",
        "edgepart_sequences_resumed_total 8.0",
    }


def test_models_and_devices(edgepart: Edgepart, member: Path, served: Served) -> None:
    models = document(edgepart("models", "--state", str(member), "--json"))["models"]
    assert any(card["name"] == "add" for card in models)
    assert "input  a  float 2x3" in edgepart("models", "--state", str(member))[1]
    assert document(edgepart("devices", "--state", str(member), "--json"))["devices"] == []
    served.node.sessions.clear()
    assert "Nothing is deployed" in edgepart("models", "--state", str(member))[1]


def test_devices_say_what_links_do_and_what_all_of_them_share(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device("pi-a", "bcm2711", 1.2e10, 3.2e9, 3.5e9, threads=4)
    link = {("pi-a", "pi-b"): Link(1e8, 2e-4, 1e-4)}
    crowd = Medium("what all share", 1.5e8, frozenset({"pi-b", "pi-a"}))
    found = Cluster((device, replace(device, name="pi-b")), link, media=(crowd,))
    monkeypatch.setattr(served.node, "devices", lambda: cluster_to_json(found))
    _, out, _ = edgepart("devices", "--state", str(member))
    assert re.search(r"pi-a - pi-b +100 MB/s +0.4 ms", out)
    assert "pi-a, pi-b send 150 MB/s at most when all send at once" in out


# Deploying


def test_deploy_and_undeploy(edgepart: Edgepart, member: Path, served: Served, tmp_path: Path) -> None:
    (tmp_path / "my model.v2.onnx").write_bytes(add_model())
    options = ["--shape", "a=2,3", "--axis", "height", "--devices", "pi-a, pi-away", "--memory-limit", "2G"]
    options += ["--search-budget", "2.5", "--batch", "8", "--batch-delay", "2.5ms"]
    found = document(edgepart("deploy", "my model.v2.onnx", *options, "--state", str(member), "--json"))
    assert found["name"] == "my-model.v2"
    assert found["endpoint"] == f"{served.url}/v2/models/my-model.v2"
    files, given = served.node.deployed["my-model.v2"]
    assert files == {"my model.v2.onnx": add_model()}
    wanted = DeployOptions({"a": (2, 3)}, "latency", "auto", "height", ("pi-a", "pi-away"), 2 << 30)
    assert given == replace(wanted, search_budget_s=2.5, batch_rows=8, batch_delay_s=0.0025)
    status, out, err = edgepart("deploy", "my model.v2.onnx", "--name", "m", "--state", str(member))
    assert status == 0
    assert f"{served.url}/v2/models/m/infer" in out and "curl" in out
    assert "sending weights" in err
    document(edgepart("deploy", "my model.v2.onnx", "--no-wait", "--state", str(member), "--json"))
    assert document(edgepart("undeploy", "add", "--state", str(member), "--json")) == {"undeployed": "add"}
    assert edgepart("undeploy", "add", "--state", str(member))[0] == 1


@pytest.mark.parametrize("text", [False, True])
def test_deploy_shows_a_table_of_the_devices_the_first_reason_and_what_to_try(
    edgepart: Edgepart,
    member: Path,
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: bool,
) -> None:
    (tmp_path / "m.onnx").write_bytes(add_model())
    sizes = dict.fromkeys(("sent_bytes", "received_bytes", "weight_bytes", "peak_memory_bytes"), 2e6)
    row = {"compute_s": 0.011, "segments": 7} | sizes
    monkeypatch.setattr(served.node, "plan", lambda name: {"devices": {"pi-a": row}})
    real = served.node.deploy

    async def deploy(*arguments: Any) -> dict[str, Any]:
        return await real(*arguments) | {
            "why": "Bottleneck: computing on pi-a (80%).\nMoving data takes 20%.",
            "text": text,
        }

    monkeypatch.setattr(served.node, "deploy", deploy)
    status, out, _ = edgepart("deploy", "m.onnx", "--name", "add", "--state", str(member))
    assert status == 0
    assert ("edgepart chat add" in out and f"{served.url}/v1" in out) == text
    assert ("edgepart infer add" in out) != text
    assert re.search(r"pi-a +11 ms( +2 MB){4} +7", out)
    assert "Bottleneck: computing on pi-a (80%)." in out and "Moving data" not in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--devices", "pi-a,pi-z"), "no device is called 'pi-z'; here are pi-a"),
        (("--devices", "pi-away"), "pi-away is not here now"),
        (("--strategy", "quick"), "give one of single"),
        (("--shape", "c=1"), "no input is called 'c'"),
        (("--shape", "a=2"), "has 2 dimensions"),
        (("--memory-limit", "much"), "--memory-limit 'much'"),
    ],
)
def test_options_are_checked_before_a_byte_travels(
    edgepart: Edgepart, member: Path, served: Served, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    (tmp_path / "m.onnx").write_bytes(add_model())
    status, _, err = edgepart("deploy", "m.onnx", *options, "--state", str(member))
    assert status == (1 if "pi-away" in options else 2)
    assert err.count(words) == 1
    assert "sending" not in err
    assert not served.node.deployed


def test_a_model_compiled_for_another_accelerator_is_refused_before_a_byte_travels(
    edgepart: Edgepart, member: Path, served: Served, tmp_path: Path
) -> None:
    import onnx

    model = onnx.load_model_from_string(add_model())
    model.graph.node[0].op_type, model.graph.node[0].domain = "EPContext", "com.microsoft"
    onnx.save_model(model, tmp_path / "m.onnx")
    status, _, err = edgepart("deploy", "m.onnx", "--state", str(member))
    assert status == 1
    assert "compiled for another accelerator" in err and "export the model without context" in err
    assert "sending" not in err and not served.node.deployed


def test_deploy_waits_no_longer_than_it_says(
    edgepart: Edgepart, member: Path, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_bytes(add_model())
    gate = served.on_loop(_event)
    served.node.gate = gate
    status, _, err = edgepart("deploy", "m.onnx", "--timeout", "0.1s", "--state", str(member))
    served.loop.call_soon_threadsafe(gate.set)
    assert status == 3
    assert "waiting up to 0.1s until it serves (--timeout)" in err
    assert "does not serve after 0.1 s (planning); it goes on" in err


def test_a_lost_device_keeps_a_row(edgepart: Edgepart, member: Path) -> None:
    _, out, _ = edgepart("status", "--state", str(member))
    assert re.search(r"pi-away\s+lost 12 s ago", out)


def test_deploy_takes_external_data_along(member: Path, served: Served, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [300]) for n in ("x", "y")]
    weight = numpy_helper.from_array(np.arange(300, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight]
    )
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    onnx.save(helper.make_model(graph), folder / "m.onnx")
    model = onnx.load(folder / "m.onnx")
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="data/w.bin", size_threshold=0)
    assert set(model_files.files_of(folder / "m.onnx")) == {"m.onnx", "data/w.bin"}
    with pytest.raises(SystemExit) as ended:
        main(["deploy", str(folder / "m.onnx"), "--state", str(member), "--json"])
    assert not ended.value.code
    assert set(served.node.deployed["m"][0]) == {"m.onnx", "data/w.bin"}


def test_what_the_agent_refuses(edgepart: Edgepart, member: Path, served: Served, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(add_model())
    served.node.failure = NO_ROOM
    status, out, err = edgepart("deploy", "m.onnx", "--state", str(member), "--json")
    assert status == 1
    refused = {"error": "pi-a lacks 12 bytes", "kind": "Infeasible", "short_bytes": {"pi-a": 12}}
    assert json.loads(out) == refused
    assert "Traceback" not in err


def test_models_that_are_none(edgepart: Edgepart, member: Path, tmp_path: Path) -> None:
    status, _, err = edgepart("deploy", "nothing.onnx", "--state", str(member))
    assert status == 2 and "no model 'nothing.onnx'" in err
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    assert edgepart("deploy", "bad.onnx", "--state", str(member))[0] == 1
    (tmp_path / "m.onnx").write_bytes(add_model())
    assert edgepart("deploy", "m.onnx", "--name", "a/b", "--state", str(member))[0] == 2


def test_deploying_needs_the_clusters_credential(edgepart: Edgepart, member: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(add_model())
    (member / "identity" / "admin").write_text("another" * 5)
    status, _, err = edgepart("deploy", "m.onnx", "--state", str(member))
    assert status == 1
    assert "credential" in err


@pytest.mark.parametrize(
    ("file", "name"), [("a b.onnx", "a-b"), ("x.y.onnx", "x.y"), ("-é-.onnx", None), ("1.onnx", "1")]
)
def test_names_from_files(file: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(UsageError, match="--name"):
            model_files.default_name(Path(file))
    else:
        assert model_files.default_name(Path(file)) == name


# Using


def test_infer(edgepart: Edgepart, member: Path, tmp_path: Path) -> None:
    np.save("a.npy", A)
    np.savez("both.npz", a=A, b=A)
    Path("b.json").write_text(json.dumps(A.tolist()))
    state = ["--state", str(member)]
    found = document(edgepart("infer", "add", "-i", "a=a.npy", "-i", "b=b.json", *state, "--json"))
    assert found["outputs"]["total"]["data"] == (2 * A).tolist()
    assert found["epoch"] == "3.1"
    status, out, _ = edgepart("infer", "add", "-i", "both.npz", "-o", "out.npz", *state)
    assert status == 0 and "total" in out
    with np.load("out.npz") as written:
        np.testing.assert_array_equal(written["total"], 2 * A)
        np.testing.assert_array_equal(written["less"], 0 * A)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-i", "a=gone.npy"], 2, "gone.npy"),
        (["-i", "c=a.npy"], 2, "no input 'c'"),
        (["-i", "a.npy"], 2, "say which"),
        (["-i", "a=a.npy"], 1, "missing"),
        (["-i", "a=a.npy", "-i", "a=a.npy"], 2, "twice"),
        (["-i", "a=both.npz"], 2, "2 arrays"),
        (["-i", "a=junk.npy"], 2, "junk.npy"),
        (["-i", "a=junk.json"], 2, "junk.json"),
        (["-i", "a=wide.npy", "-i", "b=a.npy"], 1, "FP64"),
        (["-i", "both.npz", "-o", "out.txt"], 2, ".npz"),
        (["-i", "both.npz", "-o", "no/where.npz"], 2, "where"),
    ],
)
def test_infer_says_what_is_wrong(
    edgepart: Edgepart, member: Path, arguments: list[str], status: int, words: str
) -> None:
    np.save("a.npy", A)
    np.save("wide.npy", A.astype(np.float64))
    np.savez("both.npz", a=A, b=A)
    Path("junk.npy").write_bytes(b"\x93NUMPY junk")
    Path("junk.json").write_text("[1, [2]")
    found, _, err = edgepart("infer", "add", *arguments, "--state", str(member))
    assert found == status, err
    assert words in err and "Traceback" not in err


def test_a_pickle_is_never_opened(edgepart: Edgepart, member: Path) -> None:
    np.save("a.npy", np.array([print], dtype=object), allow_pickle=True)
    status, _, err = edgepart("infer", "add", "-i", "a=a.npy", "--state", str(member))
    assert status == 2 and "a.npy" in err


def test_bench(edgepart: Edgepart, member: Path) -> None:
    found = document(edgepart("bench", "add", "-n", "30", "-c", "4", "--state", str(member), "--json"))
    assert found["requests"] == {"sent": 30, "answered": 30, "lost": 0}
    assert found["max_abs_diff"] == 0 and found["answers_equal"]
    assert found["latency_s"]["p50"] <= found["latency_s"]["p99"] <= found["latency_s"]["max"]
    assert found["predicted_latency_s"] == 0.001
    compared = found["predicted_and_measured"]
    assert compared["devices"]["pi-a"] == {
        "predicted_compute_s": 0.011,
        "measured_compute_s": 0.01,
        "off": 0.1,
    }
    assert compared["measured_latency_s"] is None  # four at once: none of them was alone
    _, out, _ = edgepart("bench", "same-string", "-n", "3", "--state", str(member))
    assert "3 sent, 3 answered, 0 lost" in out
    assert "pi-a computes" in out and "+10.0 %" in out


def test_a_deployment_is_verified_by_its_name(edgepart: Edgepart, member: Path) -> None:
    found = document(edgepart("plan", "add", "--verify", "--state", str(member), "--json"))
    assert found["model"] == "add"
    assert found["measured_latency_s"] > 0
    assert found["off"] == pytest.approx(0.012 / found["measured_latency_s"] - 1, abs=1e-3)
    _, out, _ = edgepart("plan", "add", "--verify", "--state", str(member))
    assert "a request alone" in out


def test_what_devices_are_timed_at_is_waited_for_and_not_for_ever(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "LOOK_S", 0.0)
    report = served.node.plan("add")
    report["measured"]["devices"]["pi-a"]["measured_compute_s"] = None
    monkeypatch.setattr(served.node, "plan", lambda name: report)
    found = document(edgepart("plan", "add", "--verify", "--state", str(member), "--json"))
    assert found["devices"]["pi-a"]["off"] is None


def test_bench_reports_what_is_lost(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = served.node.infer
    calls = 0

    async def sometimes(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RequestError("the fourth is bad")
        return await real(*arguments, **named)

    monkeypatch.setattr(served.node, "infer", sometimes)
    status, out, err = edgepart("bench", "add", "-n", "10", "--state", str(member))
    assert status == 1
    assert "9 answered, 1 lost" in out and "the fourth is bad" in err


# Pieces


def test_targets(tmp_path: Path) -> None:
    assert target_of("pi-a:8433", tmp_path).url == "http://pi-a:8433"
    assert target_of("http://[::1]:1/", tmp_path).is_local
    assert not target_of("pi-a:8433", tmp_path).is_local
    (tmp_path / "agent.json").write_text("[]")
    with pytest.raises(UsageError, match="cannot be read"):
        target_of(None, tmp_path)


def test_bindings_are_shown_and_bench_takes_the_first() -> None:
    from edgepart.cli import status

    bound = {"shapes": {"x": [1, 3], "n": []}, "epoch": {"term": 1, "number": 2}, "devices": ["pi-a", "pi-b"]}
    text = status._bound(bound | {"predicted_latency_s": 0.002})
    assert text == "shapes x=1,3 n=: pi-a, pi-b, predicted 2 ms"
    waiting = {"shapes": {"x": [2, 3]}, "epoch": None, "state": "waiting for a plan"}
    assert status._bound(waiting) == "shapes x=2,3: waiting for a plan"
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "k", "datatype": "FP32", "shape": [2]},
    ]
    made = tensors.random_inputs(
        tensors.bound_metadata({"inputs": inputs}, {"bindings": [bound, waiting]}), 0
    )
    assert (made["x"].shape, made["k"].shape) == ((1, 3), (2,))
    assert tensors.bound_metadata({"inputs": inputs}, {}) == {"inputs": inputs}


def test_random_inputs_are_seeded_and_fit() -> None:
    metadata = {
        "inputs": [
            {"name": "x", "datatype": "FP16", "shape": [-1, 3]},
            {"name": "k", "datatype": "INT64", "shape": []},
            {"name": "b", "datatype": "BOOL", "shape": [2]},
        ]
    }
    first, again = tensors.random_inputs(metadata, 5), tensors.random_inputs(metadata, 5)
    assert first["x"].shape == (1, 3) and first["x"].dtype == np.float16
    assert first["k"].shape == ()
    assert tensors.largest_difference(first, again) == 0
    with pytest.raises(UsageError, match="FLOAT8"):
        tensors.random_inputs({"inputs": [{"name": "x", "datatype": "FLOAT8", "shape": [1]}]}, 0)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, np.nan, np.inf], [1.5, np.nan, np.inf], 0.5),
        ([1.0], [np.nan], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([True], [False], np.inf),
        ([3], [1], 2.0),
        ([[1.0]], [1.0], np.inf),
    ],
)
def test_differences(a: Any, b: Any, expected: float) -> None:
    assert tensors.largest_difference({"y": np.array(a)}, {"y": np.array(b)}) == expected


def test_plain_values_for_json() -> None:
    assert tensors.plain(np.array([[1.0, np.nan], [-np.inf, 0.5]])) == [[1.0, "nan"], ["-inf", 0.5]]
    assert json.dumps(tensors.plain(np.array([True, False]))) == "[true, false]"


def test_progress_without_a_terminal_is_one_line_a_stage(capfd: pytest.CaptureFixture[str]) -> None:
    with output.progress({}) as bar:
        for done in range(3):
            bar("sending", done, 3)
        bar("planning", 0, 0)
    assert capfd.readouterr().err.split() == ["sending", "planning"]


def test_what_goes_on_beside_the_stages_is_told_once_it_is_complete(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with output.progress({}, beside="weights on ") as bar:
        bar("preparing", 0, 0)
        for done in (0, 5_000, 9_000, 9_000):
            bar("weights on b", done, 9_000)
        bar("preparing", 0, 0)
        bar("weights on c", 1, 2)
    assert capfd.readouterr().err.splitlines() == ["preparing", "weights on b: 9 kB"]


def test_on_a_terminal_what_goes_on_beside_the_stages_has_bars_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    # Each call makes another console, as the real one does; a note has to use that of the bars.
    consoles = itertools.chain([shown], itertools.repeat(Console(file=io.StringIO())))
    monkeypatch.setattr(output, "console", lambda **_: next(consoles))
    with output.progress({}, beside="weights on ") as bar:
        bar("preparing", 0, 0)
        output.note("it takes a while")
        bar("weights on b", 4_000, 9_000)
        bar("weights on c", 1_000, 2_000)
        bar("preparing more", 0, 0)
    assert isinstance(shown.file, io.StringIO)
    last = shown.file.getvalue()
    for text in (
        "weights on b",
        "4 kB of 9 kB",
        "weights on c",
        "1 kB of 2 kB",
        "preparing more",
    ):
        assert text in last
    assert re.search(r"\x1b\[2K[^\n]*it takes a while", last), (
        "a line above the bars, and not behind one of them"
    )
