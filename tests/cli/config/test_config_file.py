"""The file of options: every option can stand in it, the environment and the command line come before it, and what does not
belong in it is refused with its line."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from edgepart.agent.options import AgentOptions
from edgepart.cli import agent_command
from edgepart.cli.agent_command import agent
from edgepart.cli.config.config_file import read
from edgepart.cli.config.option_list import Option, options_of
from edgepart.cli.main import app, main
from edgepart.planner.errors import UsageError
from tests.agent_toml import PAGE, drawn

OPTIONS = options_of(agent)
by_key = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
VALUES: dict[type, tuple[Any, Any, Any]] = {
    str: ("one", "two", "three"),
    int: (1, 2, 3),
    float: (1.5, 2.5, 3.5),
    list: (["one", "1"], ["two", "2"], ["three", "3"]),
    bool: (False, True, False),
}
"""What a file, the environment and the command line say. None of these is a default but for one bool."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("EDGEPART_CONFIG", raising=False)


def given(*arguments: str) -> dict[str, Any]:
    """What the command's function is called with, texts as texts."""
    caught: dict[str, Any] = {}

    @functools.wraps(agent)
    def catch(**values: Any) -> None:
        caught.update(values)

    ours = typer.Typer()
    group: Any = get_command(app)
    settings = group.get_command(typer.Context(group), "agent").context_settings
    ours.command(context_settings=settings)(catch)
    ours(list(arguments), standalone_mode=False)
    return {name: str(value) if isinstance(value, Path) else value for name, value in caught.items()}


def as_variable(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def as_arguments(option: Option, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{option.key}" if value else f"--no-{option.key}"]
    values = value if isinstance(value, list) else [value]
    return [word for each in values for word in (f"--{option.key}", str(each))]


@by_key
def test_command_line_environment_file_default_in_this_order(
    option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_file, of_environment, of_line = VALUES[option.kind]
    file = tmp_path / "agent.toml"
    file.write_text(f"{option.key} = {json.dumps(of_file)}\n")
    assert given()[option.parameter] == option.default
    assert given("--config", str(file))[option.parameter] == of_file
    monkeypatch.setenv("EDGEPART_CONFIG", str(file))
    assert given()[option.parameter] == of_file
    monkeypatch.setenv(option.variable, as_variable(of_environment))
    assert given()[option.parameter] == of_environment
    assert given(*as_arguments(option, of_line))[option.parameter] == of_line


@by_key
def test_a_value_of_another_type_is_refused_with_its_line(option: Option, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    for kind, (value, _, _) in VALUES.items():
        file.write_text(f"# A comment.\n\n{option.key} = {json.dumps(value)}\n")
        if kind is option.kind or (kind, option.kind) == (int, float):
            assert read(file, OPTIONS) == {option.parameter: value}
            continue
        with pytest.raises(UsageError, match=f"agent.toml, line 3: {option.key} is .*; give "):
            read(file, OPTIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory_limit = '2G'", "line 1: there is no option 'memory_limit'; did you mean memory-limit?"),
        ("\nconfig = 'x'", "line 2: there is no option 'config'"),
        ("zzz = 1", "line 1: there is no option 'zzz'; the options are state, name, listen"),
        ("[agent]\nhttp = 'x'", r"line 1: \[agent\] begins a table"),
        ("peer = ['a:1', 2]", "line 1: peer is a list; give a list of texts"),
        ("threads = 2024-01-01", "line 1: threads is a date or a time; give a whole number"),
        ("name = {}", "line 1: name is a table; give a text"),
        ("http = \n", "is no TOML: .*line 1"),
        ("name = 'a'\nname = 'b'", "is no TOML: Cannot overwrite a value"),
        ("name = '\udcff'", "is no TOML: 'utf-8' codec can't decode"),
    ],
)
def test_what_does_not_belong_in_it(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=message):
        read(file, OPTIONS)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config .*: cannot be read \(No such file"):
        read(tmp_path / "missing.toml", OPTIONS)
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory"):
        read(tmp_path, OPTIONS)
    large = tmp_path / "large.toml"
    large.write_text("# " + "x" * (1 << 20))
    with pytest.raises(UsageError, match="has more than 1 MiB"):
        read(large, OPTIONS)


Said = tuple[AgentOptions, str, str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Said]:
    """The options with which the command would have become an agent."""
    found: list[Said] = []
    monkeypatch.setattr(
        agent_command, "become", lambda options, level, form: found.append((options, level, form))
    )
    return found


def test_the_agent_runs_as_the_file_says(said: list[Said], tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        f'state = "{tmp_path}"\npeer = ["a:1", "b:2"]\nmdns = false\nmemory-limit = "1G"\nlog-level = "debug"\n'
        'log-format = "json"\n'
    )
    with pytest.raises(SystemExit) as ended:
        main(["agent", "--config", str(file)])
    assert not ended.value.code
    ((options, *logs),) = said
    assert options == AgentOptions(
        tmp_path, peers=(("a", 1), ("b", 2)), mdns=False, memory_limit_bytes=1 << 30
    )
    assert logs == ["debug", "json"]


@pytest.mark.parametrize(
    ("line", "variable", "arguments", "message"),
    [
        ('memory-limit = "much"', None, [], "agent.toml, line 1: --memory-limit 'much': give a positive"),
        ('log-level = "loud"', None, [], "agent.toml, line 1: --log-level 'loud'"),
        ('peer = ["nowhere"]', None, [], "agent.toml, line 1: --peer 'nowhere'"),
        ("threads = 0", ("EDGEPART_SPARES", "-1"), ["--threads", "1"], "error: EDGEPART_SPARES: --spares -1"),
        ("threads = 2", None, ["--threads", "0"], "error: --threads 0: give 1 to 1024"),
    ],
)
def test_an_error_says_where_the_value_came_from(
    line: str,
    variable: tuple[str, str] | None,
    arguments: list[str],
    message: str,
    said: list[Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(line)
    if variable is not None:
        monkeypatch.setenv(*variable)
    with pytest.raises(SystemExit) as ended:
        main(["agent", "--config", str(file), *arguments])
    assert (ended.value.code, said) == (2, [])
    assert message in capsys.readouterr().err


def test_the_file_that_ships_is_made_from_the_options() -> None:
    assert PAGE.read_text() == drawn(), "run `python -m tests.agent_toml`"


def test_every_option_in_the_file_that_ships_can_be_set(tmp_path: Path) -> None:
    lines = [line.removeprefix("#") for line in PAGE.read_text().splitlines() if line[1:2].islower()]
    file = tmp_path / "agent.toml"
    file.write_text("\n".join(lines))
    assert read(file, OPTIONS).keys() == {option.parameter for option in OPTIONS}


def test_the_manual_has_every_option() -> None:
    manual = (PAGE.parent.parent / "docs" / "operations.md").read_text()
    _, _, section = manual.partition("\n### agent\n")
    section = section.partition("\n### ")[0]
    assert not {option.key for option in OPTIONS if option.key not in section} - {"state", "name"}
