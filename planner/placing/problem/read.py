"""Reading: parse the text of a workload file into a Workload. Rules only: no file is opened here.

Input that makes no sense is refused with a ModelError that says where it is: nothing is guessed, dropped or
repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.json_text import parse_json
from edgepart.planner.placing.problem import fields
from edgepart.planner.placing.problem.read_links import read_links
from edgepart.planner.placing.problem.workload import Machine, Pair, Task, TaskTensor, Workload

SCHEMA = "edgepart-workload/1"

MOST_BYTES = 256 << 20
"""The size limit of a file."""
MOST_NODES, MOST_EDGES, MOST_DEVICES = 200_000, 2_000_000, 256
MOST_COSTS = 8_000_000
"""The most nodes times devices, as a cost is kept for each pair."""


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
    root = fields.mapping(document, "workload")
    if root.get("schema") != SCHEMA:
        raise ModelError(
            f"workload: expected {SCHEMA!r} under 'schema', found {str(root.get('schema'))[:40]!r}"
        )
    machines = _machines(root)
    numbers = {machine.name: number for number, machine in enumerate(machines)}
    links = read_links(root, numbers)
    tasks = tuple(_tasks(root, machines))
    tensors = _tensors(root, {task.name: number for number, task in enumerate(tasks)}, numbers)
    workload = Workload(
        fields.text(root, "name", "workload", default="workload"),
        machines,
        tasks,
        tensors,
        links.bytes_per_s,
        links.latency_s,
        fields.truth(root, "overlap", "workload", default=True),
        links.media,
    )
    try:
        assert len(workload.order) == len(tasks)
    except UsageError as error:
        raise ModelError(str(error)) from None
    if not fields.truth(root, "disconnected", "workload", default=False):
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
    for number, value in enumerate(fields.listed(root, "devices", "workload")):
        where = f"devices[{number}]"
        entry = fields.mapping(value, where)
        name = fields.text(entry, "name", where)
        count = entry.get("count")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ModelError(
                f"{where}: expected a whole number of 1 or more under 'count', found {count!r:.40}"
            )
        if len(found) + (count or 1) > MOST_DEVICES:
            raise ModelError(f"{where}: with it there are over {MOST_DEVICES} devices, the most that is read")
        memory = fields.number(entry, "memory_bytes", where, default=inf)
        one = Machine(name, fields.text(entry, "kind", where, default=""), memory)
        names = [name] if count is None else [f"{name}{n}" for n in range(count)]
        for each in names:
            if each in found:
                raise ModelError(f"{where}: there is another device called {each!r}")
            found[each] = replace(one, name=each)
    if not found:
        raise ModelError("workload: 'devices' is empty; name at least one")
    return tuple(found.values())


def _tasks(root: Mapping[str, Any], machines: tuple[Machine, ...]) -> Iterator[Task]:
    entries = fields.listed(root, "nodes", "workload")
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
        entry = fields.mapping(value, where)
        name = fields.text(entry, "id", where)
        if name in seen:
            raise ModelError(f"{where}: there is another node {name!r}")
        seen.add(name)
        where = f"{where} ({name!r})"
        compute_s = _compute_s(entry, where, machines, known)
        memory = fields.number(entry, "memory_bytes", where, default=0.0)
        op, colocate = (fields.text(entry, key, where, default="") for key in ("op", "colocate"))
        yield Task(name, op, compute_s, memory, colocate)


def _compute_s(
    entry: Mapping[str, Any], where: str, machines: tuple[Machine, ...], known: set[str]
) -> tuple[float, ...]:
    """Return the seconds on each machine. A node without `compute_s` takes no time on any machine."""
    if "compute_s" not in entry:
        return (0.0,) * len(machines)
    inside = f"{where}.compute_s"
    given = fields.mapping(entry["compute_s"], inside)
    for key in given:
        fields.number(given, key, inside)
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
    entries = fields.listed(root, "edges", "workload") if "edges" in root else []
    if len(entries) > MOST_EDGES:
        raise ModelError(f"workload: {len(entries):,} edges; {MOST_EDGES:,} are the most that is read")
    found: dict[tuple[int, str | int], TaskTensor] = {}
    readers: dict[tuple[int, str | int], set[int]] = {}
    for number, value in enumerate(entries):
        where = f"edges[{number}]"
        entry = fields.mapping(value, where)
        source, target = (
            fields.known_number(fields.text(entry, end, where), tasks, where, "node")
            for end in ("source", "target")
        )
        # An edge without a tensor name is a tensor of its own.
        key = source, fields.text(entry, "tensor", where, default="") or number
        tensor = TaskTensor(
            source, (), fields.number(entry, "bytes", where), _transfer_s(entry, where, numbers)
        )
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
    given = fields.mapping(entry["transfer_s"], inside)
    for key in given:
        seconds = fields.number(given, key, inside)
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
