"""systemd/agent.toml: the agent's options, each at its default and with its help, made from the signature of the command.

python -m tests.agent_toml           writes it again
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from edgepart.cli.agent_command import agent
from edgepart.cli.config.option_list import Option, options_of

PAGE = Path(__file__).parent.parent / "systemd" / "agent.toml"
HEAD = """\
# The options of this device's agent. Each line that begins with "#" and a name is an option that is not set; take the "#"
# away, write your value, and run:
#
#     sudo systemctl restart edgepart-agent
#
# The environment (/etc/edgepart/edgepart.env) and the command line come before this file. A name that is no option, or a
# value of another type, ends the agent with a message that names the line (journalctl -u edgepart-agent).
"""
EXAMPLES = {
    "state": "/var/lib/edgepart",
    "name": "pi-a",
    "peer": ["192.168.7.20:7433"],
    "mqtt": "mqtts://pi@broker.lan",
    "mqtt-password-file": "/etc/edgepart/mqtt-password",
    "mqtt-ca": "/etc/edgepart/broker-ca.pem",
    "threads": 3,
    "cpus": "0-3",
    "memory-limit": "2G",
    "measured": "/var/lib/edgepart/measured.json",
    "spares": 1,
}
"""Values of options that have no default, where the agent decides."""
WIDTH = 110


def drawn() -> str:
    """The file's text."""
    return "\n".join([HEAD, *map(_entry, options_of(agent))])


def _entry(option: Option) -> str:
    """The lines of one option: what it is for, what holds if it is not set, and its value."""
    assert option.default is not None or option.key in EXAMPLES, f"EXAMPLES lacks a value of {option.key}"
    value = EXAMPLES[option.key] if option.default is None else option.default
    about = option.help
    if option.default is None:
        about += f" Not set: {option.shown_default or 'none'}."
    lines = textwrap.wrap(about, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return "\n".join([*lines, f"#{option.key} = {json.dumps(value)}", ""])


if __name__ == "__main__":
    PAGE.write_text(drawn())
