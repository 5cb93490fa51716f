"""The agent's process, with which `edgepart agent` replaces itself once the options are read: the code that reads command
lines takes 11 MB, a tenth of an idle agent's memory, and an agent runs for months.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from edgepart.agent.host.garbage_collection import collect_from_now_on, collect_nothing
from edgepart.agent.host.log_format import JSON, LogSettings
from edgepart.agent.host.log_rate import LogRate
from edgepart.agent.mqtt.broker import Broker
from edgepart.agent.options import AgentOptions
from edgepart.cli.output import exit_status, print_error
from edgepart.planner.errors import EdgepartError

log = logging.getLogger("edgepart")

MQTT_PASSWORD = "EDGEPART_MQTT_PASSWORD"


def become(options: AgentOptions, log_level: str, log_format: str) -> NoReturn:
    """Replaces this process with the agent's; the process id stays."""
    sys.stdout.flush()
    sys.stderr.flush()
    fields = asdict(options)
    if fields["mqtt"] is not None and (password := fields["mqtt"].pop("password")) is not None:
        os.environ[MQTT_PASSWORD] = (
            password  # other users can see the arguments of a process, but not its environment
        )
    text = json.dumps(fields, default=str)
    set_ciphers(options.state, Path("/proc/cpuinfo"), log_settings(log_level, log_format).warn)
    os.execv(sys.executable, [sys.executable, "-m", __name__, log_level, log_format, text])


def set_ciphers(state: Path, cpuinfo: Path, warn: Callable[[str], None]) -> None:
    """Makes OpenSSL prefer ChaCha20 in the agent's process if the processor has no AES instructions. Changes nothing if
    OPENSSL_CONF is set, or if the system has a policy of its own, of which it warns."""
    if "OPENSSL_CONF" in os.environ or not state.is_dir() or not os.access(cpuinfo, os.R_OK):
        return
    # These are imported here because only some boxes need them.
    from edgepart.agent.security.ciphers import configuration, lacks_aes

    if not lacks_aes(cpuinfo.read_text(errors="replace")):
        return
    import ssl

    from edgepart.agent.storage.atomic_files import write_atomic

    place = Path(ssl.get_default_verify_paths().openssl_capath).with_name("openssl.cnf")
    text = configuration(place.read_text(errors="replace") if place.exists() else "", str(place))
    if text is None:
        warn(f"{place} decides about TLS; AES may be slow without instructions for it")
        return
    ours = state / "openssl.cnf"
    write_atomic(ours, text.encode())
    os.environ["OPENSSL_CONF"] = str(ours)


def options_of(text: str) -> AgentOptions:
    """The options that `become` wrote."""
    fields = json.loads(text)
    peers = tuple(map(tuple, fields.pop("peers")))
    password = os.environ.pop(MQTT_PASSWORD, None)  # no child process needs it
    if (broker := fields["mqtt"]) is not None:
        ca = None if broker["ca"] is None else Path(broker["ca"])
        fields["mqtt"] = Broker(**broker | {"ca": ca}, password=password if broker["user"] else None)
    fields |= {
        "state": Path(fields["state"]),
        "measured": None if fields["measured"] is None else Path(fields["measured"]),
        "listen": tuple(fields["listen"]),
        "providers": tuple(fields["providers"]),
        "http": tuple(fields["http"]),
        "grpc": None if fields["grpc"] is None else tuple(fields["grpc"]),
    }
    return AgentOptions(**fields, peers=peers)


def log_settings(log_level: str, log_format: str) -> LogSettings:
    """The settings that the options of those names ask for."""
    return LogSettings(getattr(logging, log_level.upper()), log_format)


def limit_log(root: logging.Logger, clock: Callable[[], float]) -> None:
    """Limits how often the log's handlers write each kind of line, including those of libraries."""
    limit = LogRate(clock)
    for handler in root.handlers:
        handler.addFilter(limit)


def main(log_level: str, log_format: str, text: str) -> None:
    log_settings(log_level, log_format).apply()
    # zeroconf warns about every interface without multicast; discovery itself reports if no interface has it.
    logging.getLogger("zeroconf").setLevel(logging.ERROR)
    limit_log(logging.getLogger(), time.monotonic)
    collect_nothing()
    from edgepart.agent.service import run

    try:
        run(options_of(text), collect_from_now_on)
    except EdgepartError as error:
        if log_format == JSON:
            log.critical("%s", error)
        else:
            print_error(error, as_json=False)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
