"""The files for containers fit their schemas, and what they say of the image and the agent is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from edgepart.cli.agent_command import agent
from edgepart.cli.config.option_list import options_of

FOLDER = Path(__file__).parent.parent / "installers" / "containers"
KUBERNETES = "1.30"
VARIABLES = {option.variable for option in options_of(agent)} | set(
    re.findall(r"^#   (EDGEPART_\w+)", (FOLDER / "member").read_text(), re.MULTILINE)
)
"""What the image understands: the agent's options, and what its script says of itself."""


def document(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def checked(file: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_compose_file_is_one_and_a_mistake_would_be_noticed(tmp_path: Path) -> None:
    assert checked(FOLDER / "compose.yaml").returncode == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("read_only:", "readonly:"))
    assert checked(wrong).returncode == 1


def test_the_daemon_set_is_one_and_a_mistake_would_be_noticed() -> None:
    made = document("k3s.yaml")
    kubernetes_validate.validate(made, KUBERNETES, strict=True)
    made["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, KUBERNETES, strict=True)


def test_agents_run_without_rights_read_only_and_with_the_hosts_network() -> None:
    pod = document("k3s.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert pod["hostNetwork"] and rights["runAsNonRoot"] and rights["readOnlyRootFilesystem"]
    assert f"--uid {rights['runAsUser']}" in (FOLDER / "Containerfile").read_text()
    services = document("compose.yaml")["services"]
    agents = [each for name, each in services.items() if name != "broker"]
    assert len(agents) == 3
    assert all(
        each["read_only"] and each["network_mode"] == "host" and each["cap_drop"] == ["ALL"]
        for each in agents
    )


def test_agents_of_one_machine_have_ports_of_their_own() -> None:
    services = document("compose.yaml")["services"]
    agents = [each["environment"] for name, each in services.items() if name != "broker"]
    doors = ("EDGEPART_LISTEN", "EDGEPART_HTTP", "EDGEPART_GRPC")
    addresses = [each[door] for each in agents for door in doors]
    assert len(set(addresses)) == 9, "each agent names its ports: the default is taken"


def test_every_variable_is_one_that_the_image_understands() -> None:
    (container,) = document("k3s.yaml")["spec"]["template"]["spec"]["containers"]
    used = {each["name"] for each in container["env"]}
    for service in document("compose.yaml")["services"].values():
        used |= service.get("environment", {}).keys()
    assert len(used) >= 6 and used <= VARIABLES
