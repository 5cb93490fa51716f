"""What people type of a broker, and where the password may not be seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgepart.agent.mqtt.broker import Broker, parse_broker
from edgepart.agent.options import AgentOptions
from edgepart.agent.wire.address import format_address, mqtt_address, mqtt_node, parse_address
from edgepart.cli import agent
from edgepart.cli.options import broker_of
from edgepart.planner.errors import UsageError

STATE = Path("state")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mqtt://broker", Broker("broker", 1883)),
        ("mqtt://broker:2000/", Broker("broker", 2000)),
        ("mqtts://broker", Broker("broker", 8883, tls=True)),
        ("mqtt://[fe80::1]:1", Broker("fe80::1", 1)),
        ("mqtt://pi@broker", Broker("broker", 1883, user="pi")),
        ("mqtts://pi:s%40fe%2F@broker:1", Broker("broker", 1, True, "pi", "s@fe/")),
    ],
)
def test_urls(text: str, expected: Broker) -> None:
    assert parse_broker(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "broker", "broker:1883", "tcp://broker", "http://broker", "mqtt://", "mqtt://:1883", "mqtt://b:0",
     "mqtt://b:70000", "mqtt://b:x", "mqtt://b/topic", "mqtt://b?x=1", "mqtt://b#x", "mqtt://[fe80::1", "mqtt://a b",
     "mqtt://b\n", "mqtt://:secret@b", "mqtt://u:secret@b:port", "mqtt://u:secret@"],
)  # fmt: skip
def test_urls_that_lead_nowhere_are_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(UsageError, match="--mqtt") as caught:
        parse_broker(text)
    assert "secret" not in str(caught.value)


def test_a_password_is_given_once_and_with_a_user() -> None:
    assert parse_broker("mqtt://pi@b", password="x").password == "x"
    with pytest.raises(UsageError, match="twice"):
        parse_broker("mqtt://pi:y@b", password="x")
    with pytest.raises(UsageError, match="no user"):
        parse_broker("mqtt://b", password="x")


def test_a_broker_shows_no_password() -> None:
    broker = parse_broker("mqtts://pi:secret@[::1]")
    assert "secret" not in f"{broker} {broker!r}" and str(broker) == "mqtts://[::1]:8883"


def test_a_ca_is_for_tls_only(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    assert broker_of("mqtts://b", None, tmp_path / "ca.pem") == Broker(
        "b", 8883, True, ca=tmp_path / "ca.pem"
    )
    with pytest.raises(UsageError, match="mqtts"):
        broker_of("mqtt://b", None, tmp_path / "ca.pem")
    with pytest.raises(UsageError, match="no such file"):
        broker_of("mqtts://b", None, tmp_path / "none.pem")


def test_passwords_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPART_MQTT_PASSWORD", "from outside")
    made = broker_of("mqtt://pi@b", None, None)
    assert made is not None and made.password == "from outside"
    (tmp_path / "password").write_text("from a file\n")
    made = broker_of("mqtt://pi@b", tmp_path / "password", None)
    assert made is not None and made.password == "from a file"
    with pytest.raises(UsageError, match="cannot be read"):
        broker_of("mqtt://pi@b", tmp_path / "none", None)
    with pytest.raises(UsageError, match="need --mqtt"):
        broker_of(None, tmp_path / "password", None)
    assert broker_of(None, None, None) is None


def test_addresses_through_a_broker() -> None:
    address = mqtt_address("0123456789abcdef")
    assert parse_address(format_address(address)) == address
    assert mqtt_node(address) == "0123456789abcdef"
    assert mqtt_node(("mqtt", 7433)) is None and mqtt_node(("::1", 1)) is None
    with pytest.raises(UsageError):
        parse_address("mqtt:me")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"transport": "udp"}, "tcp, mqtt"),
        ({"transport": "mqtt"}, "name the broker"),
        ({"peers": (mqtt_address("0" * 16),)}, "--transport mqtt"),
        ({"transport": "mqtt", "mqtt": Broker("b", 1), "peers": (("10.0.0.1", 7433),)}, "mqtt:NODE"),
    ],
)
def test_options_that_do_not_go_together(wrong: dict[str, object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        AgentOptions(STATE, **wrong)  # type: ignore[arg-type]


def test_a_password_reaches_the_agent_but_not_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker("b", 8883, True, "pi", "secret", Path("/ca.pem"))
    options = AgentOptions(STATE, mqtt=broker, transport="mqtt", peers=(mqtt_address("0" * 16),))
    became: list[list[str]] = []
    monkeypatch.setenv("EDGEPART_MQTT_PASSWORD", "")
    monkeypatch.setattr(os, "execv", lambda program, arguments: became.append(arguments))
    agent.become(options, "info", "text")
    (arguments,) = became
    assert "secret" not in " ".join(arguments)
    assert agent.options_of(arguments[-1]) == options
    assert "EDGEPART_MQTT_PASSWORD" not in os.environ


def test_an_agent_without_a_broker_does_not_load_paho() -> None:
    probe = (
        "import json, sys, edgepart.cli.agent, edgepart.agent.service; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert not [name for name in json.loads(done.stdout) if name.startswith("paho")]
