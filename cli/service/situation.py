"""Facts of an installation: where its files are, what is there on this box, and what was asked for. No door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNIT = "edgepart-agent.service"
USER = "edgepart"
CONF = "edgepart.conf"
"""The name of the files that tell systemd-sysusers of the user and systemd-tmpfiles of its folder."""
WRITTEN_FOR = "/opt/edgepart/bin/edgepart"
"""The program in the unit file as it ships."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files of an installation are."""

    root: Path = Path("/")
    """The folder in which all the others are; another one for tests."""

    @property
    def unit(self) -> Path:
        return self.root / "etc/systemd/system" / UNIT

    @property
    def sysusers(self) -> Path:
        return self.root / "etc/sysusers.d" / CONF

    @property
    def tmpfiles(self) -> Path:
        return self.root / "etc/tmpfiles.d" / CONF

    @property
    def packaged(self) -> Mapping[Path, Path]:
        """The files of systemd, and where a package of the distribution puts them."""
        library = self.root / "usr/lib"
        return {
            self.unit: library / "systemd/system" / UNIT,
            self.sysusers: library / "sysusers.d" / CONF,
            self.tmpfiles: library / "tmpfiles.d" / CONF,
        }

    @property
    def settings(self) -> Path:
        """The folder of the two files that people edit."""
        return self.root / "etc/edgepart"

    @property
    def config(self) -> Path:
        return self.settings / "agent.toml"

    @property
    def environment(self) -> Path:
        return self.settings / "edgepart.env"

    @property
    def state(self) -> Path:
        return self.root / "var/lib/edgepart"

    @property
    def link(self) -> Path:
        """The command, for everybody's PATH."""
        return self.root / "usr/local/bin/edgepart"


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The identity that is in the state directory."""

    node: str
    fingerprint: str
    """The cluster's."""
    is_issuer: bool
    """Whether this box holds the key that lets others in."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """The texts that ship with the product."""

    unit: str
    """For the program that installs it."""
    sysusers: str
    tmpfiles: str
    config: str
    environment: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What is there."""

    places: Places
    executable: Path
    """The program that is to run as the service."""
    shipped: Shipped
    is_root: bool
    has_systemd: bool
    """Whether systemd runs, as sd_booted(3) has it."""
    missing_tools: tuple[str, ...] = ()
    hidden: str | None = None
    """Why the service's user cannot run the program; None if it can."""
    taken: tuple[str, ...] = ()
    """The addresses that the agent is to listen on and that another program has, such as "*:7433"."""
    wrong_settings: str | None = None
    """Why agent.toml, as it is there, cannot be used."""
    damage: str | None = None
    """Why the identity that is there cannot be used."""
    texts: Mapping[Path, str] = field(default_factory=dict)
    """The texts of the files that are there, of those that an installation has."""
    linked: bool = False
    """Whether the shell finds the command edgepart."""
    owns_link: bool = False
    """Whether the link that an installation makes is there, and leads to this program."""
    has_user: bool = False
    has_state: bool = False
    """Whether the state directory is there."""
    member: Enrolment | None = None
    is_enabled: bool = False
    is_active: bool = False
    version: str = ""
    """The version of the program that is to run as the service."""
    running_version: str = ""
    """The version that runs as the service; "" if none does, or if it does not answer."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What `edgepart service install` was asked for."""

    makes_cluster: bool = False
    token: str | None = None
    fingerprint: str | None = None
    """That of the cluster that the token is for."""
    name: str | None = None
    settings: Mapping[str, str | list[str]] = field(default_factory=dict)
    """Options for agent.toml, of which joining needs to know too: peer and the broker."""
