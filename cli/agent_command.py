"""`edgepart agent`: runs this device's agent in the foreground, as systemd does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edgepart.agent.engines.choice import AUTO, parse_providers
from edgepart.agent.host.log_format import FORMATS, TEXT
from edgepart.agent.options import GRPC_PORT, HTTP_PORT, LISTEN_PORT, AgentOptions, parse_bytes
from edgepart.agent.wire.address import parse_address
from edgepart.agent.wire.vocabulary import LOCAL, OPENNESS, TRANSPORTS
from edgepart.cli.agent import become
from edgepart.cli.config import config_file
from edgepart.cli.config.option_list import options_of
from edgepart.cli.options import (
    Mqtt,
    MqttCa,
    MqttPasswordFile,
    Name,
    Peers,
    State,
    broker_of,
    recall_name,
    state_of,
)
from edgepart.planner.errors import UsageError

LEVELS = ("debug", "info", "warning", "error")

Listen = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="The address for other agents. * means every address, IPv6 included; port 0 picks a free port.",
    ),
]
Http = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="The address for clients. It is not encrypted: open it to trusted networks only.",
    ),
]
Grpc = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT|off",
        help="The address for clients that use gRPC. It is not encrypted either.",
    ),
]
Inference = Annotated[
    str,
    typer.Option(
        metavar="|".join(OPENNESS),
        help="Who may run inference without the credential: everyone who reaches --http or --grpc, programs on this "
        "machine, or nobody.",
    ),
]
ClientRate = Annotated[
    float,
    typer.Option(
        metavar="N",
        help="The most requests per second from one other address that sends no credential.",
    ),
]
Mdns = Annotated[
    bool, typer.Option("--mdns/--no-mdns", help="Find members on the local networks by multicast DNS.")
]
Transport = Annotated[
    str,
    typer.Option(
        metavar="|".join(TRANSPORTS),
        help="How members connect. With mqtt, all traffic passes through the broker, which is slower. All members need the "
        "same value.",
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="The number of threads for ONNX Runtime.", show_default="every core")
]
Cpus = Annotated[
    str | None,
    typer.Option(
        metavar="LIST", help="The CPUs to run on, such as 0-3.", show_default="all that the system allows"
    ),
]
LeaveCores = Annotated[
    int, typer.Option(metavar="N", help="How many cores to leave to other programs, in place of --threads.")
]
Nice = Annotated[
    int, typer.Option(metavar="N", help="By how much to lower the priority of what computes, 0 to 19.")
]
Providers = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|LIST",
        help="What to compute with beside the CPU, such as openvino,cuda. auto is all that the installed onnxruntime "
        "offers, that computes as exactly as the CPU, and that passes a check at the start.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="The most memory that the agent and its models may use, such as 2G.",
        show_default="most of what is free",
    ),
]
ProfileBudget = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="The time for measuring a new plan on this device before it replaces the old one.",
    ),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="EDGEPART_MEASURED",
        help="A file that keeps the measurement of this device. It is written if it does not fit this device, and read "
        "instead of measuring if it does. FILE.engines and FILE.cores beside it keep those of engines and cores.",
        show_default="in the state folder",
    ),
]
Compiled = Annotated[
    str,
    typer.Option(metavar="BYTES", help="Disk space for compiled models; 0 turns the cache off."),
]
Spares = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How many plans for the loss of devices to keep ready for each deployment while this agent leads; 0 turns "
        "them off.",
        show_default="one for each device that serves",
    ),
]
LogLevel = Annotated[str, typer.Option(metavar="|".join(LEVELS), help="How much to log.")]
LogFormat = Annotated[
    str,
    typer.Option(metavar="|".join(FORMATS), help="Log lines for people, or one JSON document in each line."),
]


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    return config_file.load(context, path, options_of(agent))


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="EDGEPART_CONFIG",
        metavar="FILE",
        is_eager=True,
        callback=_read_config,
        help="A TOML file with these options, such as /etc/edgepart/agent.toml. The command line and the environment come "
        "before it.",
        show_default="no file",
    ),
]


def _limit_bytes(text: str | None) -> int | None:
    return None if text is None else parse_bytes(text, option="--memory-limit")


def _require_one_of(known: Sequence[str], given: str, option: str) -> None:
    if given not in known:
        raise UsageError(f"{option} {given!r}: give one of {', '.join(known)}")


def agent(
    context: typer.Context,
    config: Config = None,
    state: State = None,
    name: Name = None,
    listen: Listen = f"*:{LISTEN_PORT}",
    http: Http = f"127.0.0.1:{HTTP_PORT}",
    grpc: Grpc = f"127.0.0.1:{GRPC_PORT}",
    inference: Inference = LOCAL,
    client_rate: ClientRate = 100.0,
    peer: Peers = None,
    mdns: Mdns = True,
    mqtt: Mqtt = None,
    mqtt_password_file: MqttPasswordFile = None,
    mqtt_ca: MqttCa = None,
    transport: Transport = "tcp",
    threads: Threads = None,
    cpus: Cpus = None,
    leave_cores: LeaveCores = 0,
    nice: Nice = 0,
    providers: Providers = AUTO,
    memory_limit: MemoryLimit = None,
    profile_budget: ProfileBudget = 10.0,
    measured: Measured = None,
    compiled: Compiled = "2G",
    spares: Spares = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = TEXT,
) -> None:
    """Run this device's agent until it is told to stop (SIGTERM, Ctrl-C)."""
    try:
        folder = state_of(state)
        options = AgentOptions(
            state=folder,
            name=name or recall_name(folder),
            listen=parse_address(listen, option="--listen", default_port=LISTEN_PORT),
            http=parse_address(http, option="--http", default_port=HTTP_PORT),
            grpc=None if grpc == "off" else parse_address(grpc, option="--grpc", default_port=GRPC_PORT),
            inference=inference,
            client_rate=client_rate,
            peers=tuple(parse_address(text, option="--peer") for text in peer or ()),
            mdns=mdns,
            mqtt=broker_of(mqtt, mqtt_password_file, mqtt_ca),
            transport=transport,
            threads=threads,
            cpus=cpus,
            leave_cores=leave_cores,
            nice=nice,
            providers=parse_providers(providers),
            memory_limit_bytes=_limit_bytes(memory_limit),
            profile_budget_s=profile_budget,
            measured=measured.absolute() if measured else None,
            compiled_bytes=0 if compiled == "0" else parse_bytes(compiled, option="--compiled"),
            spares=spares,
        )
        _require_one_of(LEVELS, log_level, "--log-level")
        _require_one_of(FORMATS, log_format, "--log-format")
    except UsageError as error:
        raise config_file.located(error, context, config, options_of(agent)) from error
    become(options, log_level, log_format)
