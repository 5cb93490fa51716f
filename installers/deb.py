"""Makes a package for Debian and Ubuntu, which `apt install ./FILE.deb` installs without a network.

    python -m installers.deb --wheel dist/edgepart-0.1.0-py3-none-any.whl [--architecture arm64] [--pythons 3.11 3.13]

The package holds an environment of Python (/usr/lib/edgepart) that uses the system's interpreter. For each Python that it
is made for, it has a folder of packages: those of systemd/requirements.lock, with their hashes. So one package serves
several releases, and still works after an upgrade of the system. 3.11 is Debian 12's Python, 3.13 Debian 13's, 3.10 Ubuntu
22.04's (and JetPack 6's), 3.12 Ubuntu 24.04's. It can be made for a processor that this machine does not have.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepart.cli.service.plan import unit_for
from edgepart.cli.service.situation import CONF, UNIT

ROOT = Path(__file__).parent.parent
HOME = Path("usr/lib/edgepart")
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
"""Debian's names of processors, and uv's."""
PYTHONS = ("3.11", "3.13")
UNUSED = ("onnx/backend/test/data",)
"""Parts of packages that only their own tests use, and that are large."""
CONTROL = """\
Package: edgepart
Version: {version}
Architecture: {architecture}
Maintainer: edgepart <edgepart@localhost>
Installed-Size: {kibibytes}
Depends: {depends}
Recommends: systemd
Section: science
Priority: optional
Description: runs any ONNX model over the small boxes that you already have
 An agent on each box finds the others, measures them, and splits models over them.
 After the installation: sudo edgepart service install --init on the first box, and
 sudo edgepart service install --join TOKEN on every other one.
"""
SCRIPT = """\
#!/{home}/bin/python
import sys

from edgepart.cli.main import main

sys.exit(main())
"""


def dependencies(pythons: Sequence[str]) -> str:
    """What apt is asked for: an interpreter that the package has a folder for, and what wheels expect of a system.

    >>> dependencies(["3.11", "3.13"])
    'python3 (>= 3.11), python3 (<< 3.14), libc6 (>= 2.28), libstdc++6'
    """
    versions = sorted(tuple(map(int, each.split("."))) for each in pythons)
    oldest, (major, minor) = ".".join(map(str, versions[0])), versions[-1]
    return f"python3 (>= {oldest}), python3 (<< {major}.{minor + 1}), libc6 (>= 2.28), libstdc++6"


def run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True)


def add_packages(tree: Path, wheel: Path, python: str, architecture: str) -> None:
    """Install edgepart and what it needs into the folder of one Python. uv, because pip reads the markers of requirements
    for the Python that it runs in itself."""
    target = tree / HOME / "lib" / f"python{python}" / "site-packages"
    uv = Path(sys.executable).with_name("uv")
    common = (
        uv,
        "pip",
        "install",
        "--quiet",
        "--target",
        target,
        "--python-version",
        python,
        "--no-deps",
        "--link-mode=copy",
    )
    platform = ("--python-platform", PLATFORMS[architecture], "--only-binary", ":all:")
    run(*common, *platform, "--require-hashes", "--requirement", ROOT / "systemd" / "requirements.lock")
    run(*common, *platform, wheel)
    for name in ("bin", "hatchling", "share", *UNUSED):
        shutil.rmtree(target / name, ignore_errors=True)


def add_environment(tree: Path) -> None:
    """Make the environment: the two things by which Python recognises one, and the command."""
    home = tree / HOME
    (home / "bin").mkdir(parents=True)
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name, leads_to in (("python3", "/usr/bin/python3"), ("python", "python3")):
        (home / "bin" / name).symlink_to(leads_to)
    script = home / "bin" / "edgepart"
    script.write_text(SCRIPT.format(home=HOME))
    script.chmod(0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/edgepart").symlink_to("../lib/edgepart/bin/edgepart")


def add_service(tree: Path) -> None:
    """Put the files of systemd where packages have them; `edgepart service install` finds them there."""
    source, library = ROOT / "systemd", tree / "usr/lib"
    unit = unit_for((source / UNIT).read_text(), Path("/") / HOME / "bin" / "edgepart")
    texts = {f"systemd/system/{UNIT}": unit}
    for folder in ("sysusers.d", "tmpfiles.d"):
        texts[f"{folder}/{CONF}"] = (source / folder / "edgepart.conf").read_text()
    for place, text in texts.items():
        (library / place).parent.mkdir(parents=True)
        (library / place).write_text(text)
    manual = tree / "usr/share/doc/edgepart"
    manual.mkdir(parents=True)
    shutil.copy(ROOT / "NOTICE", manual / "copyright")
    with (manual / "copyright").open("a") as file:
        file.write("\nLicence: Apache-2.0, /usr/share/common-licenses/Apache-2.0\n")


def add_control(tree: Path, version: str, architecture: str, pythons: Sequence[str]) -> None:
    files = (path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files) >> 10
    control = tree / "DEBIAN"
    control.mkdir()
    text = CONTROL.format(
        version=version, architecture=architecture, kibibytes=size, depends=dependencies(pythons)
    )
    (control / "control").write_text(text)
    for name in ("postinst", "prerm", "postrm"):
        shutil.copy(ROOT / "installers" / "debian" / name, control)
        (control / name).chmod(0o755)


def make(wheel: Path, architecture: str, pythons: Sequence[str], out: Path) -> Path:
    """Make the package; return its path."""
    version = wheel.name.split("-")[1]
    made = out / f"edgepart_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir(mode=0o755)
        add_environment(tree)
        add_service(tree)
        for python in pythons:
            add_packages(tree, wheel, python, architecture)
        add_control(tree, version, architecture, pythons)
        run("chmod", "-R", "u+rwX,go+rX,go-w", tree)
        out.mkdir(parents=True, exist_ok=True)
        run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z10", "--build", tree, made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--architecture", choices=PLATFORMS, default="amd64")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="X.Y")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    made = make(given.wheel, given.architecture, given.pythons, given.out)
    print(
        f"{made}: {made.stat().st_size / 1e6:.0f} MB, for {given.architecture} and Python {', '.join(given.pythons)}"
    )


if __name__ == "__main__":
    main()
