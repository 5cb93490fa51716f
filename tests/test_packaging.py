"""The installed package: every part, nothing generic, and a console script that works outside the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import edgepart

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "edgepart"
IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "shared", "results", ".*_cache", "__pycache__", ".hypothesis"
)


def settings() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return document


def test_every_part_is_a_top_level_folder_and_ships() -> None:
    build = settings()["tool"]["hatch"]["build"]
    links = {path.name for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == build["targets"]["wheel"]["sources"].keys() - {"src"}
    assert all((PACKAGE / name).resolve() == ROOT / name for name in links)
    assert {f"/src/edgepart/{name}" for name in links} == set(build["exclude"])
    assert set(build["targets"]["wheel"]["only-include"]) == links | {"src"}
    assert set(build["targets"]["sdist"]["only-include"]) >= links | {"src"}


@pytest.mark.parametrize("name", ["agent", "planner", "client", "cli", "tests", "systemd", "benchmarks"])
def test_nothing_generic_is_importable(name: str) -> None:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    subprocess.run([sys.executable, "-I", "-c", probe], check=True)


def test_the_version_is_the_projects() -> None:
    assert edgepart.__version__ == settings()["project"]["version"]


Locked = dict[str, list[tuple[Requirement, int, set[str]]]]
"""Maps a package to its entries, one for each Python with a version of its own: the pinned requirement, the
number of hashes, and what requires it."""


def locked() -> Locked:
    found: Locked = {}
    text = (ROOT / "systemd" / "requirements.lock").read_text()
    for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        pinned = Requirement(entry.partition("\\")[0].strip())
        _, _, via = entry.partition("# via")
        asking = {line.strip(" #") for line in via.splitlines() if line.strip(" #")}
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)
        found.setdefault(pinned.name, []).append((pinned, len(hashes), asking))
    return found


def test_the_lock_has_what_an_agent_needs_and_what_builds_it_each_with_its_hashes() -> None:
    found, document = locked(), settings()
    needed = [*document["project"]["dependencies"], *document["build-system"]["requires"]]
    for wanted in map(Requirement, needed):
        for pinned, _, _ in found[wanted.name]:
            (version,) = pinned.specifier
            assert version.operator == "==" and wanted.specifier.contains(version.version), pinned
    assert all(hashes for entries in found.values() for _, hashes, _ in entries)


def test_nothing_is_locked_that_nothing_needs() -> None:
    """Each package is required by the project, by its build (which the lock does not mention), or by another
    needed package."""
    found, document = locked(), settings()
    direct = {
        name
        for name, entries in found.items()
        if any(not asking or "edgepart (pyproject.toml)" in asking for _, _, asking in entries)
    }
    needed = [*document["project"]["dependencies"], *document["build-system"]["requires"]]
    assert direct == {Requirement(text).name for text in needed}
    reached = set(direct)
    while more := {
        name
        for name, entries in found.items()
        if name not in reached and any(asking & reached for _, _, asking in entries)
    }:
        reached |= more
    assert reached == found.keys()


def test_the_service_is_installed_from_the_lock() -> None:
    command = "pip install --require-hashes -r systemd/requirements.lock"
    for page in ("docs/install.md", "docs/operations.md"):
        assert command in (ROOT / page).read_text()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files, as in a clean checkout."""
    made = tmp_path_factory.mktemp("clone") / "edgepart"
    shutil.copytree(ROOT, made, symlinks=True, ignore=IGNORED)
    return made


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EDGEPART"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    """Return a wheel built as `pip install .` builds it; pip fetches the build backend."""
    out = clone.parent / "dist"
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, ".", cwd=clone)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.processes
def test_the_wheel_holds_what_the_folders_hold_and_nothing_else(clone: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = {
        f"edgepart/{path.relative_to(clone)}"
        for part in ("agent", "planner", "client", "cli", "systemd")
        for path in (clone / part).rglob("*")
        if path.is_file()
    }
    own = {
        f"edgepart/{path.name}"
        for path in (clone / "src/edgepart").iterdir()
        if path.is_file() and not path.is_symlink()
    }
    assert packed == folders | own
    assert {
        "edgepart/py.typed",
        "edgepart/cli/demo/page.png",
        "edgepart/cli/planning/catalogue.json",
        "edgepart/agent/http/page/static/index.html",
        "edgepart/systemd/edgepart-agent.service",  # for `edgepart service install`
    } <= packed


@pytest.mark.processes
def test_installed_into_an_environment_of_its_own_the_command_works(wheel: Path, tmp_path: Path) -> None:
    """Like `pip install .`, with the dependencies that this environment has: fetching them again would only
    test the network."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env/bin/python"
    target = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    dependencies = [entry for entry in sys.path if entry.endswith("site-packages")]
    (target / "dependencies.pth").write_text("\n".join(dependencies))

    command = tmp_path / "env/bin/edgepart"
    where = "import edgepart.cli.main as m; print(m.__file__)"
    assert run(python, "-c", where, cwd=tmp_path).startswith(str(target))
    assert run(command, "--version", cwd=tmp_path).split() == ["edgepart", edgepart.__version__]
    made = json.loads(run(command, "init", "--json", cwd=tmp_path, EDGEPART_STATE=str(tmp_path / "state")))
    assert made["fingerprint"].startswith(made["cluster"])
    assert (tmp_path / "state/identity").is_dir()
    tokens = json.loads(
        run(command, "token", "list", "--json", cwd=tmp_path, EDGEPART_STATE=str(tmp_path / "state"))
    )
    assert [token["usable"] for token in tokens["tokens"]] == [True]
    run(python, "-m", "edgepart", "--help", cwd=tmp_path)
