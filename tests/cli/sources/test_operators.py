"""Descriptions of operators as a person gives them, against a real server with a fake node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgepart as product
from edgepart.cli.sources.operators import read_operators
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_graph
from tests.agent.http.conftest import CREDENTIAL, Served, served
from tests.cli.test_cli import Edgepart, edgepart, member
from tests.planner.tdl.functions import DOMAIN, rows, scanned_rows

__all__ = ["edgepart", "member", "served"]

ROWS = f"""
from edgepart.tdl import Opaque, Sum, operator

@operator("{DOMAIN}", "Rows")
def rows(a, b):
    return lambda i, j: Opaque(Sum(lambda k: a[i, k] * b[k, j]))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    path.write_bytes(scanned_rows())
    return path


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    path = tmp_path / "my-ops.py"
    path.write_text(ROWS)
    return path


def test_a_file_is_run_and_its_descriptions_are_taken(operators: Path, tmp_path: Path) -> None:
    assert read_operators(operators) == (rows,) and read_operators(None) == ()
    (tmp_path / "beside.py").write_text("DOMAIN = 'my'")
    operators.write_text("from beside import DOMAIN\n" + ROWS.replace(f'"{DOMAIN}"', "DOMAIN"))
    assert [one.domain for one in read_operators(operators)] == ["my"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "my-ops.py describes no operator: put @operator"),
        ("x = 1\nx = y", "my-ops.py:2: NameError: name 'y' is not defined"),
        ("x = 1\ndef x(:", "my-ops.py:2: SyntaxError"),
        ("import sys\nsys.exit('no')", "my-ops.py:2: SystemExit: no"),
        (
            ROWS.replace("a[i, k]", "a[i // 2, k]"),
            "my-ops.py:4: rows does not describe Rows: only +, - and *",
        ),
        (ROWS.replace("a[i, k]", "a[i, k].real"), "my-ops.py:6: AttributeError"),
        (
            ROWS + ROWS.replace("def rows", "def again").replace("j]))", "j]) * 2)"),
            "describes Rows of .* twice",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_line(operators: Path, text: str, said: str) -> None:
    operators.write_text(text)
    with pytest.raises(
        UsageError, match=said.replace("+", r"\+").replace("*", r"\*") if "//" in text else said
    ):
        read_operators(operators)


def test_deploy_sends_the_model_with_its_descriptions_and_no_python(
    edgepart: Edgepart, member: Path, served: Served, model: Path, operators: Path, tmp_path: Path
) -> None:
    status, _, err = edgepart("deploy", "m.onnx", "--operators", "my-ops.py", "--state", str(member))
    assert status == 0, err
    ((name, sent),) = served.node.deployed["m"][0].items()
    assert name == "m.onnx" and sent.startswith(scanned_rows()) and b"lambda" not in sent
    assert load_graph(sent).descriptions == {(DOMAIN, "Rows"): (rows,)}
    assert model.read_bytes() == scanned_rows()
    assert not list((tmp_path / "cache" / "edgepart").iterdir())
    with product.connect(served.url, credential=CREDENTIAL) as client:
        client.deploy(model, "again", operators=[rows])
    assert served.node.deployed["again"][0] == {name: sent}


def test_a_plan_divides_what_is_described(
    edgepart: Edgepart, model: Path, operators: Path, tmp_path: Path
) -> None:
    slow = {"kind": "k", "flops_per_s": 1e5, "memory_bytes_per_s": 1e5, "memory_bytes": 1e9}
    link = {"bytes_per_s": 1e9, "latency_s": 1e-6}
    cluster = {"devices": [slow | {"name": name} for name in "ab"], "default_link": link}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    status, out, err = edgepart(
        "plan", "m.onnx", "--cluster", "cluster.json", "--operators", "my-ops.py", "--json"
    )
    assert status == 0, err
    (a, b) = (row["layers"] for row in json.loads(out)["devices"].values())
    assert (a["s"], b["s"]) == ("batch 0:12", "batch 12:24")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ROWS.replace('"Rows"', '"Row"'),
            "Row of test.functions is described, and with functions has no such",
        ),
        (ROWS.replace("i, j:", "n, i, j:"), "output 0 has 2 axes, and 3 indices are described"),
        (ROWS.replace("a[i, k]", "a[i, k, 0]"), "a has 2 axes, and is read with 3 indices"),
    ],
)
@pytest.mark.parametrize("command", ["deploy", "plan", "check"])
def test_what_does_not_fit_the_model_is_refused_before_anything_is_done(
    edgepart: Edgepart,
    member: Path,
    served: Served,
    model: Path,
    operators: Path,
    command: str,
    text: str,
    said: str,
) -> None:
    operators.write_text(text)
    state = () if command == "check" else ("--state", str(member))
    status, _, err = edgepart(command, "m.onnx", "--operators", "my-ops.py", *state)
    assert status == 2 and said in err
    assert not served.node.deployed
