"""Reading: parse the text of a workload file into a Workload. Rules only: no file is opened here.

Input that makes no sense is refused with a ModelError that says where it is: nothing is guessed, dropped or
repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.json_text import parse_json
from edgepart.planner.placing.problem.workload import Machine, Pair, Task, TaskTensor, Workload
from edgepart.planner.widest_way import find_widest_way

SCHEMA = "edgepart-workload/1"

MOST_BYTES = 256 << 20
"""The size limit of a file."""
MOST_NODES, MOST_EDGES, MOST_DEVICES = 200_000, 2_000_000, 256
MOST_COSTS = 8_000_000
"""The most nodes times devices, as a cost is kept for each pair."""
LEAST, MOST = 1e-30, 1e30
"""The smallest and the largest number other than 0: with others, sums become infinite."""

Table = tuple[tuple[float, ...], ...]


def looks_like_workload(head: bytes, name: str = "") -> bool:
    """Whether a file that begins with `head` is to be read as a workload: it begins like JSON, or its name
    ends in .json. No ONNX file begins with a brace."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") or name.lower().endswith(".json")


def read_workload(text: str | bytes) -> Workload:
    """Return the workload of a file's text. Raises ModelError, which names the place, for anything that is wrong."""
    if len(text) > MOST_BYTES:
        raise ModelError(f"workload: {len(text):,} bytes; {MOST_BYTES:,} are the most that is read")
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ModelError(f"workload: is no JSON ({error})") from error
    return workload_of(document)


def workload_of(document: Any) -> Workload:
    """Return the workload of a parsed JSON document. Raises ModelError as `read_workload` does."""
    root = _mapping(document, "workload")
    if root.get("schema") != SCHEMA:
        raise ModelError(
            f"workload: expected {SCHEMA!r} under 'schema', found {str(root.get('schema'))[:40]!r}"
        )
    machines = _machines(root)
    numbers = {machine.name: number for number, machine in enumerate(machines)}
    latency_s, bytes_per_s = _links(root, numbers)
    tasks = tuple(_tasks(root, machines))
    tensors = _tensors(root, {task.name: number for number, task in enumerate(tasks)}, numbers)
    workload = Workload(
        _text(root, "name", "workload", default="workload"),
        machines,
        tasks,
        tensors,
        bytes_per_s,
        latency_s,
        _truth(root, "overlap", "workload", default=True),
    )
    try:
        assert len(workload.order) == len(tasks)
    except UsageError as error:
        raise ModelError(str(error)) from None
    if not _truth(root, "disconnected", "workload", default=False):
        _connected(workload)
    return workload


def _connected(workload: Workload) -> None:
    """Raise ModelError for a graph in several parts, as edges are easily lost when files are converted."""
    apart = list(range(len(workload.tasks)))

    def root_of(task: int) -> int:
        while apart[task] != task:
            apart[task] = task = apart[apart[task]]
        return task

    for tensor in workload.tensors:
        for reader in tensor.readers:
            apart[root_of(reader)] = root_of(tensor.source)
    roots = {root_of(task): task for task in range(len(apart))}
    if len(roots) > 1:
        one, other = sorted(roots.values())[:2]
        raise ModelError(
            f"{workload.name}: disconnected: no way leads from node {workload.tasks[one].name!r} to "
            f"{workload.tasks[other].name!r} ({len(roots)} parts); add the edges that are missing, or "
            '"disconnected": true if that is meant'
        )


def _machines(root: Mapping[str, Any]) -> tuple[Machine, ...]:
    found: dict[str, Machine] = {}
    for number, value in enumerate(_list(root, "devices", "workload")):
        where = f"devices[{number}]"
        entry = _mapping(value, where)
        name = _text(entry, "name", where)
        count = entry.get("count")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ModelError(
                f"{where}: expected a whole number of 1 or more under 'count', found {count!r:.40}"
            )
        if len(found) + (count or 1) > MOST_DEVICES:
            raise ModelError(f"{where}: with it there are over {MOST_DEVICES} devices, the most that is read")
        memory = _number(entry, "memory_bytes", where, default=inf)
        one = Machine(name, _text(entry, "kind", where, default=""), memory)
        names = [name] if count is None else [f"{name}{n}" for n in range(count)]
        for each in names:
            if each in found:
                raise ModelError(f"{where}: there is another device called {each!r}")
            found[each] = replace(one, name=each)
    if not found:
        raise ModelError("workload: 'devices' is empty; name at least one")
    return tuple(found.values())


def _links(root: Mapping[str, Any], numbers: Mapping[str, int]) -> tuple[Table, Table]:
    """Return the seconds of latency and the bytes a second of each link, both [from][to]."""
    given = dict(_given_links(root, numbers))
    default = None
    if "default_link" in root:
        entry = _mapping(root["default_link"], "default_link")
        default = _link(entry, "default_link", "bytes_per_s")
    latency_s, bytes_per_s = [], []
    for name, here in numbers.items():
        row = []
        for other, there in numbers.items():
            found = (0.0, inf) if here == there else given.get((here, there), default)
            if found is None:
                found = _join(given, here, there)
            if found is None:
                raise ModelError(
                    f"workload: no link from {name!r} to {other!r}, over other devices neither, and no 'default_link'"
                )
            row.append(found)
        latency_s.append(tuple(latency for latency, _ in row))
        bytes_per_s.append(tuple(rate for _, rate in row))
    return tuple(latency_s), tuple(bytes_per_s)


def _join(given: Mapping[Pair, tuple[float, float]], here: int, there: int) -> tuple[float, float] | None:
    """Return the latency and the rate of the widest way over other devices, which is as fast as its slowest link and has
    the latencies of all; None if there is none."""
    nearby: dict[int, dict[int, tuple[float, float]]] = {}
    for (a, b), (latency_s, rate) in given.items():
        nearby.setdefault(a, {})[b] = rate, latency_s
    legs = [given[hop] for hop in pairwise(find_widest_way(nearby, here, there))]
    return (sum(latency for latency, _ in legs), min(rate for _, rate in legs)) if legs else None


def _given_links(
    root: Mapping[str, Any], numbers: Mapping[str, int]
) -> Iterator[tuple[Pair, tuple[float, float]]]:
    seen: set[Pair] = set()
    entries = _list(root, "links", "workload") if "links" in root else []
    for number, value in enumerate(entries):
        where = f"links[{number}]"
        entry = _mapping(value, where)
        a, b = (_known_number(_text(entry, end, where), numbers, where, "device") for end in "ab")
        if a == b or (a, b) in seen:
            raise ModelError(
                f"{where}: {entry['a']!r} and {entry['b']!r} {'are one device' if a == b else 'are linked already'}"
            )
        seen |= {(a, b), (b, a)}
        yield (a, b), _link(entry, where, "bytes_per_s")
        yield (
            (b, a),
            _link(entry, where, BACK if BACK in entry else "bytes_per_s"),
        )


LINK_KEYS = frozenset({"bytes_per_s", "latency_s"})
"""The keys of a link, besides its ends."""
BACK = "up_bytes_per_s"
"""The key of a link's bytes a second from `b` to `a`, where they differ from those from `a` to `b`."""


def _link(entry: Mapping[str, Any], where: str, key: str) -> tuple[float, float]:
    known = LINK_KEYS if where == "default_link" else LINK_KEYS | {"a", "b", BACK}
    if unknown := sorted(entry.keys() - known):
        raise ModelError(
            f"{where}: a link has no {unknown[0]!r:.40}; it has {', '.join(sorted(known))}. 'bytes_per_s' is the rate from "
            f"a to b, and {BACK!r} that from b to a where it differs"
        )
    rate = _number(entry, key, where)
    if not rate:
        raise ModelError(
            f"{where}: nothing moves at 0 under {key!r}; leave the link out, or say what it does"
        )
    return _number(entry, "latency_s", where, default=0.0), rate


def _tasks(root: Mapping[str, Any], machines: tuple[Machine, ...]) -> Iterator[Task]:
    entries = _list(root, "nodes", "workload")
    if not entries:
        raise ModelError("workload: 'nodes' is empty; there is nothing to place")
    if len(entries) > MOST_NODES or len(entries) * len(machines) > MOST_COSTS:
        raise ModelError(
            f"workload: {len(entries):,} nodes on {len(machines)} devices; {MOST_NODES:,} nodes, and {MOST_COSTS:,} "
            "nodes times devices, are the most that is read"
        )
    known = {machine.name for machine in machines} | {machine.kind for machine in machines} - {""}
    seen: set[str] = set()
    for number, value in enumerate(entries):
        where = f"nodes[{number}]"
        entry = _mapping(value, where)
        name = _text(entry, "id", where)
        if name in seen:
            raise ModelError(f"{where}: there is another node {name!r}")
        seen.add(name)
        where = f"{where} ({name!r})"
        compute_s = _compute_s(entry, where, machines, known)
        memory = _number(entry, "memory_bytes", where, default=0.0)
        op, colocate = (_text(entry, key, where, default="") for key in ("op", "colocate"))
        yield Task(name, op, compute_s, memory, colocate)


def _compute_s(
    entry: Mapping[str, Any], where: str, machines: tuple[Machine, ...], known: set[str]
) -> tuple[float, ...]:
    """Return the seconds on each machine. A node without `compute_s` takes no time on any machine."""
    if "compute_s" not in entry:
        return (0.0,) * len(machines)
    inside = f"{where}.compute_s"
    given = _mapping(entry["compute_s"], inside)
    for key in given:
        _number(given, key, inside)
        if key not in known:
            raise ModelError(f"{inside}: there is no device, and no kind, {key!r:.80}")
    found = tuple(
        float(given[machine.name] if machine.name in given else given.get(machine.kind, inf))
        for machine in machines
    )
    if min(found) == inf:
        raise ModelError(f"{inside}: is empty, so it can run on no device; say what it takes on at least one")
    return found


def _tensors(
    root: Mapping[str, Any], tasks: Mapping[str, int], numbers: Mapping[str, int]
) -> tuple[TaskTensor, ...]:
    """Return the tensors: edges with the same source and tensor name are merged into one."""
    entries = _list(root, "edges", "workload") if "edges" in root else []
    if len(entries) > MOST_EDGES:
        raise ModelError(f"workload: {len(entries):,} edges; {MOST_EDGES:,} are the most that is read")
    found: dict[tuple[int, str | int], TaskTensor] = {}
    readers: dict[tuple[int, str | int], set[int]] = {}
    for number, value in enumerate(entries):
        where = f"edges[{number}]"
        entry = _mapping(value, where)
        source, target = (
            _known_number(_text(entry, end, where), tasks, where, "node") for end in ("source", "target")
        )
        # An edge without a tensor name is a tensor of its own.
        key = source, _text(entry, "tensor", where, default="") or number
        tensor = TaskTensor(source, (), _number(entry, "bytes", where), _transfer_s(entry, where, numbers))
        if found.setdefault(key, tensor) != tensor:
            raise ModelError(
                f"{where}: tensor {key[1]!r} of {entry['source']!r} has other bytes, or other times, in an edge before"
            )
        readers.setdefault(key, set()).add(target)
    return tuple(
        TaskTensor(tensor.source, tuple(sorted(readers[key])), tensor.nbytes, tensor.transfer_s)
        for key, tensor in found.items()
    )


def _transfer_s(entry: Mapping[str, Any], where: str, numbers: Mapping[str, int]) -> dict[Pair, float]:
    if "transfer_s" not in entry:
        return {}
    inside = f"{where}.transfer_s"
    found: dict[Pair, float] = {}
    given = _mapping(entry["transfer_s"], inside)
    for key in given:
        seconds = _number(given, key, inside)
        pair = _pair(key, numbers, inside)
        if pair[0] != pair[1]:
            found[pair] = seconds
        elif seconds:
            raise ModelError(f"{inside}: {key!r:.80} leads from a device to itself, which takes no time")
    return found


def _pair(key: str, numbers: Mapping[str, int], where: str) -> Pair:
    """Return the two machines that "a->b" names. A name may itself contain an arrow."""
    parts = key.split("->")
    for at in range(1, len(parts)):
        a, b = "->".join(parts[:at]), "->".join(parts[at:])
        if a in numbers and b in numbers:
            return numbers[a], numbers[b]
    raise ModelError(f'{where}: {key!r:.80} names no two devices; write it as "a->b"')


def _known_number(name: str, numbers: Mapping[str, int], where: str, what: str) -> int:
    if name not in numbers:
        raise ModelError(f"{where}: there is no {what} {name!r:.80}")
    return numbers[name]


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _list(root: Mapping[str, Any], key: str, where: str) -> list[Any]:
    if not isinstance(root.get(key), list):
        raise ModelError(f"{where}: expected a list under {key!r}")
    return list(root[key])


def _text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or not (value or default == ""):
        raise ModelError(f"{where}: expected a text under {key!r}, found {value!r:.40}")
    return value


def _truth(entry: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{where}: expected true or false under {key!r}, found {value!r:.40}")
    return value


def _number(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """Return the number under `key`: 0, or from LEAST to MOST. Raises ModelError if it is missing without a
    default, negative, not finite, or not a number."""
    value = entry.get(key, default)
    if key not in entry and default is not None:
        return default
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # Written so that the comparison is false for NaN.
    if not good or value is None or not (value == 0 or LEAST <= value <= MOST):
        said = "nothing" if key not in entry else f"{value!r:.40}"
        raise ModelError(f"{where}: expected a number of 0 or more under {key!r:.80}, found {said}")
    return float(value)
