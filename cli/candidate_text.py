"""Candidates in words: what a deployment's candidate gets, and what the agent that was asked has seen of it. Rules: no
door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepart.planner.figures import format_figure, format_seconds


def candidate_text(card: Mapping[str, Any]) -> str:
    """A few sentences about a deployment's candidate, from the card of the deployment; "" if it has none."""
    trial = card.get("candidate")
    if not trial:
        return ""
    number, serving = trial["version"], card.get("version", "1")
    gets = "gets a copy of each request" if trial["shadow"] else f"answers {trial['share']} % of the requests"
    sentences = [f"{card['name']}: version {number}, the candidate, {gets}"]
    if trial["trouble"]:
        sentences.append(f"it does not answer now: {trial['trouble']}")
    if not trial["shadow"] and trial["answers"] + trial["serving_answers"]:
        total = trial["answers"] + trial["serving_answers"]
        sentences.append(f"it has answered {trial['answers']} of {total} through this agent")
    sentences += _compared(trial) + _times(trial, number, serving) + _failed(trial, serving)
    return "; ".join(text.rstrip(".") for text in sentences) + "."


def _compared(trial: Mapping[str, Any]) -> list[str]:
    """How its answers differ from those of the version that serves."""
    count = trial["compared"]
    if not count:
        return []
    part = format_figure(100 * trial["different"] / count, 2)
    most = format_figure(100 * trial["largest_difference"], 2)
    return [
        f"of {count} copies {trial['different']} ({part} %) have another choice, and numbers differ by {most} % at most"
    ]


def _times(trial: Mapping[str, Any], number: str, serving: str) -> list[str]:
    if trial["mean_s"] is None:
        return []
    took = f"version {number} takes {format_seconds(trial['mean_s'])} on average"
    if trial["serving_mean_s"] is None:
        return [took]
    return [f"{took}, and version {serving} {format_seconds(trial['serving_mean_s'])}"]


def _failed(trial: Mapping[str, Any], serving: str) -> list[str]:
    found = []
    if trial["fallbacks"]:
        found.append(f"version {serving} answered {trial['fallbacks']} in its place")
    if trial["copy_errors"]:
        found.append(f"copies that it could not answer: {trial['copy_errors']}")
    if found and trial["last_failure"]:
        found[-1] += f" ({trial['last_failure'].rstrip('.')})"
    if trial["copies_dropped"]:
        found.append(f"requests without a copy, as too many were under way: {trial['copies_dropped']}")
    return found
