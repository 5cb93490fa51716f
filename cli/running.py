"""`edgepart agent`: runs this device's agent in the foreground. What systemd starts."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepart.agent.options import HTTP_PORT, LISTEN_PORT, AgentOptions, parse_bytes
from edgepart.agent.wire.address import parse_address
from edgepart.agent.wire.vocabulary import LOCAL, OPENNESS, TRANSPORTS
from edgepart.cli.agent import become
from edgepart.cli.clustering import Name, remembered_name
from edgepart.cli.options import Mqtt, MqttCa, MqttPasswordFile, State, broker_of, state_of
from edgepart.planner.errors import UsageError

LEVELS = ("debug", "info", "warning", "error")


def agent(
    state: State = None,
    name: Name = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where other agents connect; * is every address, IPv6 too; port 0 picks a free one.",
        ),
    ] = f"*:{LISTEN_PORT}",
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where clients connect. Not encrypted: open it to trusted networks only.",
        ),
    ] = f"127.0.0.1:{HTTP_PORT}",
    inference: Annotated[
        str,
        typer.Option(
            metavar="|".join(OPENNESS),
            help="Who may infer without the credential: all who reach --http, this machine's programs, or nobody.",
        ),
    ] = LOCAL,
    client_rate: Annotated[
        float,
        typer.Option(metavar="N", help="Requests a second of another address that shows no credential."),
    ] = 100.0,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="HOST:PORT", help="A member to call, where mDNS finds none. Repeatable."
        ),
    ] = None,
    mdns: Annotated[
        bool, typer.Option("--mdns/--no-mdns", help="Look for members on the local networks.")
    ] = True,
    mqtt: Mqtt = None,
    mqtt_password_file: MqttPasswordFile = None,
    mqtt_ca: MqttCa = None,
    transport: Annotated[
        str,
        typer.Option(
            metavar="|".join(TRANSPORTS),
            help="How members reach each other; mqtt: through the broker alone, which is slower. "
            "The same for all of a cluster.",
        ),
    ] = "tcp",
    threads: Annotated[int | None, typer.Option(help="For ONNX Runtime.", show_default="every core")] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="What it may take here in all: 2G.", show_default="most of what is free"
        ),
    ] = None,
    profile_budget: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="For timing a plan on this device before it replaces one."),
    ] = 10.0,
    compiled: Annotated[
        str,
        typer.Option(
            metavar="BYTES", help="Of the disk, for what was optimised for this processor; 0: none."
        ),
    ] = "2G",
    spares: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many plans for losses are kept ready for each deployment while this agent leads; 0: none.",
            show_default="one for each device that serves",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "info",
) -> None:
    """Run this device's agent until it is told to stop (SIGTERM, Ctrl-C)."""
    folder = state_of(state)
    options = AgentOptions(
        state=folder,
        name=name or remembered_name(folder),
        listen=parse_address(listen, option="--listen", default_port=LISTEN_PORT),
        http=parse_address(http, option="--http", default_port=HTTP_PORT),
        inference=inference,
        client_rate=client_rate,
        peers=tuple(parse_address(text, option="--peer") for text in peer or ()),
        mdns=mdns,
        mqtt=broker_of(mqtt, mqtt_password_file, mqtt_ca),
        transport=transport,
        threads=threads,
        memory_limit_bytes=None
        if memory_limit is None
        else parse_bytes(memory_limit, option="--memory-limit"),
        profile_budget_s=profile_budget,
        compiled_bytes=0 if compiled == "0" else parse_bytes(compiled, option="--compiled"),
        spares=spares,
    )
    if log_level not in LEVELS:
        raise UsageError(f"--log-level {log_level!r}: give one of {', '.join(LEVELS)}")
    become(options, log_level)
