"""Notices: what a person should know about a cluster, taken from the document of /api/status. Rules, without I/O.

`edgepart status` prints them, and the page of every agent shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice."""

    text: str
    trouble: bool = False
    """Whether something does not work; otherwise it is good to know."""


def all_notices(document: Mapping[str, Any]) -> list[Notice]:
    """All notices of the document."""
    return [
        *member_notices(document),
        *deployment_notices(document),
        *cluster_notices(document),
    ]


def member_notices(document: Mapping[str, Any]) -> Iterator[Notice]:
    for drained in document.get("drains") or ():
        yield Notice(f"{drained['name']} is {drained['state']}: {drained['text']}")
    for refused in document.get("refused") or ():
        yield Notice(f"{refused['name'] or refused['node']} is refused: {refused['why']}")
    disk = document.get("disk") or {}
    for text in (disk.get("trouble"), *(disk.get("damaged") or ())):
        if text:
            yield Notice(text, trouble=True)
    for member in document.get("members", ()):
        if member.get("note"):
            yield Notice(f"{member['name']}: {member['note']}")
    for gone in document.get("lost", ()):
        if gone.get("note"):
            yield Notice(f"{gone['name']} fell silent; last it was {gone['note']}")


def deployment_notices(document: Mapping[str, Any]) -> Iterator[Notice]:
    for card in document.get("deployments", ()):
        if card.get("trouble"):
            yield Notice(f"{card['name']} does not answer: {card['trouble']}", trouble=True)
        if card.get("note"):
            yield Notice(f"{card['name']}: {card['note']}")
        if card.get("transfer_dtype", "float32") != "float32":
            rounding = card.get("rounding") or f"rounded to {card['transfer_dtype']} between devices"
            yield Notice(f"{card['name']}: {rounding}")
        if card.get("quantised"):
            yield Notice(f"{card['name']}: {card['quantised']}")


def cluster_notices(document: Mapping[str, Any]) -> Iterator[Notice]:
    if document.get("grpc_trouble"):
        yield Notice(f"{document['name']} serves no gRPC: {document['grpc_trouble']}", trouble=True)
    for line in (document.get("security") or {}).get("warnings", ()):
        yield Notice(line, trouble=True)
    for line in document.get("notes", ()):
        yield Notice(line)
    for name, why in (document.get("failed_deployments") or {}).items():
        yield Notice(f"the last attempt to deploy {name} here failed: {why}")
