"""Descriptions of what a cluster is to run: YAML comes in, records or the place of the first fault come out. Rules: no
door.

deployments:
  photos:
    model: resnet50.onnx            # a path beside this file, a folder, or an https:// URL
    digest: sha256:9f86d081...      # the model must have it; needed only where there is no `model`
    devices: [pi-a, pi-b]           # and any other option of `edgepart deploy`
    candidate:                      # a version that is tried beside it, with the same keys
      model: resnet50-new.onnx
      share: 10                     # percent of the requests, or: shadow: true
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare, candidate_name, check_free_name
from edgepart.cli.describe.changes import DeployedState, DescribedVersion, TriedVersion
from edgepart.cli.describe.option_keys import KEYS, read_option, write_options
from edgepart.cli.sources.download import check_url, is_url
from edgepart.cli.sources.model import read_digest
from edgepart.planner.errors import UsageError

MOST_CHARACTERS = 1 << 20
"""The longest description."""
MOST_DEPTH = 8
"""The most mappings and lists within each other; an option's value needs five."""
DEPLOYMENTS, MODEL, DIGEST = "deployments", "model", "digest"
CANDIDATE, SHARE, SHADOW = "candidate", "share", "shadow"
_STRING, _MAP = "tag:yaml.org,2002:str", yaml.MappingNode


@dataclass(frozen=True)
class DescribedDeployment:
    """A deployment as a user describes it."""

    name: str
    model: str
    """A path, relative to the description's folder, or a URL; "" for a model that the cluster stores already."""
    digest: str
    """The digest that the model must have (hex); "" accepts any, if there is a model."""
    options: DeployOptions
    place: str
    """The place of its name in the file, for messages."""
    candidate: DescribedDeployment | None = None
    """The version that is tried beside it, under the name of candidates."""
    share: TrialShare | None = None
    """What a candidate gets; None for a deployment."""


def read_description(text: str, file: str) -> tuple[DescribedDeployment, ...]:
    """The deployments that a description has, in its order. Raises UsageError, which names `file` and the line and column
    of the first fault: a key that there is not, one that is given twice, or a value of the wrong type or out of its
    bounds."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"{file}: {len(text)} characters are more than {MOST_CHARACTERS}")
    top = _entries(_compose(text, file), file, "the description")
    if unknown := [key for key in top if key != DEPLOYMENTS]:
        raise _wrong(file, top[unknown[0]], f"there is no key {unknown[0]!r}; there is {DEPLOYMENTS!r}")
    if DEPLOYMENTS not in top:
        raise UsageError(f"{file}: the key {DEPLOYMENTS!r} is missing")
    listed = _entries(top[DEPLOYMENTS], file, DEPLOYMENTS)
    return tuple(_deployment(name, node, file) for name, node in listed.items())


def write_description(there: Mapping[str, DeployedState]) -> str:
    """The description of what is deployed. Models are named by their digests: the cluster stores them."""
    described = {
        name: _write(one.now) | ({} if one.candidate is None else {CANDIDATE: _write_trial(one.candidate)})
        for name, one in sorted(there.items())
    }
    text: str = yaml.safe_dump({DEPLOYMENTS: described}, sort_keys=False, allow_unicode=True)
    return text


def _write(version: DescribedVersion) -> dict[str, Any]:
    return {DIGEST: f"sha256:{version.digest}"} | write_options(version.options)


def _write_trial(trial: TriedVersion) -> dict[str, Any]:
    return _write(trial.version) | ({SHADOW: True} if trial.share.shadow else {SHARE: trial.share.percent})


def _deployment(name: str, node: yaml.Node, file: str) -> DescribedDeployment:
    from edgepart.agent.api.deployment_name import check_name

    try:
        check_free_name(check_name(name))
    except UsageError as error:
        raise _wrong(file, node, str(error)) from error
    where = f"{DEPLOYMENTS}.{name}"
    entries = _entries(node, file, where)
    tried = entries.pop(CANDIDATE, None)
    found = _parts(name, node, entries, file, where)
    return found if tried is None else replace(found, candidate=_candidate(name, tried, file))


def _candidate(name: str, node: yaml.Node, file: str) -> DescribedDeployment:
    where = f"{DEPLOYMENTS}.{name}.{CANDIDATE}"
    entries = _entries(node, file, where)
    given = {key: entries.pop(key) for key in (SHARE, SHADOW) if key in entries}
    values = {key: _value(value, file) for key, value in given.items()}
    percent, shadow = values.get(SHARE, 0), values.get(SHADOW, False)
    try:
        if not given:
            raise UsageError(f"give {SHARE!r} (percent of the requests) or {SHADOW!r}: true")
        if type(percent) is not int or type(shadow) is not bool:
            raise UsageError(f"{SHARE!r} is a whole number of percent, and {SHADOW!r} true or false")
        share = TrialShare(percent, shadow)
    except UsageError as error:
        raise _wrong(file, node, f"{where}: {error}") from error
    return replace(_parts(candidate_name(name), node, entries, file, where), share=share)


def _parts(
    name: str, node: yaml.Node, entries: Mapping[str, yaml.Node], file: str, where: str
) -> DescribedDeployment:
    """The model and the options that the entries of a mapping describe."""
    given: dict[str, Any] = {}
    by_field: dict[str, str] = {}
    texts = {MODEL: "", DIGEST: ""}
    for key, value in entries.items():
        try:
            if key in texts:
                texts[key] = _text(key, value, file)
                continue
            if key not in KEYS:
                raise UsageError(f"there is no such key; there are {', '.join((*texts, *KEYS))}")
            field = KEYS[key].field
            if field in given:
                raise UsageError(f"it and {by_field[field]!r} exclude each other")
            given[field], by_field[field] = read_option(key, _value(value, file)), key
        except UsageError as error:
            raise _wrong(file, value, f"{where}.{key}: {error}") from error
    if not any(texts.values()):
        raise _wrong(
            file,
            node,
            f"{where}: give {MODEL!r} (a path or an https:// URL), or the {DIGEST!r} of a stored model",
        )
    return DescribedDeployment(name, texts[MODEL], texts[DIGEST], DeployOptions(**given), _place(file, node))


def _text(key: str, node: yaml.Node, file: str) -> str:
    if key == DIGEST and isinstance(node, yaml.ScalarNode):
        return read_digest(node.value)  # Its digits alone may look like a number to YAML.
    value = _value(node, file)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"expected a text, found {value!r:.80}; put quotes around it")
    return check_url(value) if is_url(value) else value


# YAML, in which each node knows its place


def _compose(text: str, file: str) -> yaml.Node:
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise _wrong(file, event, f"more than {MOST_DEPTH} levels are nested")
            if isinstance(event, yaml.AliasEvent):
                raise _wrong(file, event, f"aliases (*{event.anchor}) are not read; write the value out")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _damaged(file, error) from error
    if node is None:
        raise UsageError(f"{file}: it is empty; it needs the key {DEPLOYMENTS!r}")
    return node


def _entries(node: yaml.Node, file: str, where: str) -> dict[str, yaml.Node]:
    """The values of a mapping by their keys."""
    if not isinstance(node, _MAP):
        raise _wrong(file, node, f"{where}: expected keys and values, found {_kind(node)}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != _STRING:
            said = key.value if isinstance(key, yaml.ScalarNode) else _kind(key)
            raise _wrong(file, key, f"{where}: the key {said!r:.80} is no text; put quotes around it")
        if key.value in found:
            raise _wrong(file, key, f"{where}: {key.value!r} is given twice")
        found[key.value] = value
    return found


def _value(node: yaml.Node, file: str) -> Any:
    """The plain value of a node. Raises UsageError for what YAML has beyond texts, numbers, lists and mappings."""
    if isinstance(node, _MAP):
        return {key: _value(value, file) for key, value in _entries(node, file, "here").items()}
    if isinstance(node, yaml.SequenceNode):
        return [_value(one, file) for one in node.value]
    try:
        return yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{node.value!r:.80} is no value of the type {node.tag.rpartition(':')[2]}"
        ) from error


def _kind(node: yaml.Node) -> str:
    kinds = {"map": "keys and values", "seq": "a list", "str": "a text", "null": "nothing"}
    tag = node.tag.rpartition(":")[2]
    return kinds.get(tag, tag)


def _place(file: str, at: yaml.Node | yaml.Event) -> str:
    mark = at.start_mark
    return f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file


def _wrong(file: str, at: yaml.Node | yaml.Event, what: str) -> UsageError:
    """The error about a place in the file; what is said of a place within stays as it is."""
    return UsageError(
        what if what.startswith(f"{file}:") else f"{_place(file, at)}: {what}. Nothing was changed"
    )


def _damaged(file: str, error: yaml.YAMLError) -> UsageError:
    mark = getattr(error, "problem_mark", None)
    place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return UsageError(f"{place}: this is no YAML: {problem}. Nothing was changed")
