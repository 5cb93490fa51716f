"""Exit codes: the table in docs/operations.md is complete, and says what commands do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepart.cli import main as main_module
from edgepart.cli import output
from edgepart.cli.main import main
from edgepart.cli.output import DIFFERS, FAILED, GOES_ON, WRONG_USAGE, exit_status
from edgepart.planner import errors
from edgepart.planner.errors import EdgepartError

ROOT = Path(__file__).parents[2]
CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, EdgepartError)]
NAMED = {"FAILED": FAILED, "WRONG_USAGE": WRONG_USAGE, "GOES_ON": GOES_ON, "DIFFERS": DIFFERS}
ENDS = {"typer.Exit", "sys.exit"}


def table() -> dict[int, set[str]]:
    """The errors that the page names for each code."""
    page = (ROOT / "docs" / "operations.md").read_text()
    part = page[page.index("### Exit codes") : page.index("## Why is a box not in?")]
    rows = re.findall(r"^\| ([0-9]+) \| .* \| (.*) \|$|^\| ([0-9]+) \| .* \| \|$", part, re.MULTILINE)
    return {int(code or bare): set(re.findall(r"`(\w+)`", named)) for code, named, bare in rows}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_error_has_the_code_that_the_table_gives(kind: type[EdgepartError]) -> None:
    naming = [code for code, named in table().items() if kind.__name__ in named]
    assert [exit_status(kind("x"))] == (naming or [FAILED])


def test_the_table_names_errors_that_exist() -> None:
    assert set().union(*table().values()) <= {kind.__name__ for kind in CLASSES}


def codes_in(path: Path) -> Iterator[int]:
    """The codes with which the module ends the program, other than by an error."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ENDS:
            (given,) = node.args
            if isinstance(given, ast.Constant):
                assert isinstance(given.value, int)
                yield given.value
            elif isinstance(given, ast.Name):
                yield NAMED[given.id]
            else:
                assert ast.unparse(given) == "exit_status(error)", (
                    f"{path}: what is the code of {ast.unparse(node)}?"
                )


def test_commands_end_with_codes_of_the_table() -> None:
    modules = [path for path in (ROOT / "cli").rglob("*.py") if "emulation" not in path.parts]
    found = {code for path in modules for code in codes_in(path)}
    assert found == {FAILED, DIFFERS, 130}
    assert {0, *found, *map(exit_status, (kind("x") for kind in CLASSES))} == table().keys()


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), FAILED)])
def test_what_ends_a_command_from_outside(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> None:
        raise raised

    monkeypatch.setattr(main_module, "app", fail)
    monkeypatch.setattr("os.dup2", lambda *given: None)
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    assert ended.value.code == code


def test_an_error_is_one_line_and_with_json_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_error(errors.StillGoing("it goes on"), as_json=True)
    told = capsys.readouterr()
    assert (told.out, told.err) == ('{"error": "it goes on", "kind": "StillGoing"}\n', "error: it goes on\n")
