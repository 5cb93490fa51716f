"""Names: what people call members, made unique, and used in what people read. Rules: no door."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_NODE = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


def unique_names(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """(node, name) pairs to a unique name per node: those who share a name get as much of their id as it
    takes. Depends on the set only, not on its order.

    >>> unique_names([("3fa2aaaaaaaaaaaa", "pi"), ("77b1bbbbbbbbbbbb", "pi"), ("c0cccccccccccccc", "nas")])
    {'3fa2aaaaaaaaaaaa': 'pi-3fa2', '77b1bbbbbbbbbbbb': 'pi-77b1', 'c0cccccccccccccc': 'nas'}
    """
    plain = {node: name or node for node, name in named}
    if len(set(plain.values())) == len(plain):
        return plain
    pairs = sorted(plain.items())
    for digits in (4, 8, 16):
        shared = Counter(name for _, name in pairs)
        names = {n: name if shared[name] == 1 else f"{name}-{n[:digits]}" for n, name in pairs}
        if len(set(names.values())) == len(names):
            return names
    return {node: f"{name}-{node}" for node, name in pairs}


def named(text: str, names: Mapping[str, str]) -> str:
    """`text` with the names of the nodes in it that have one, instead of their ids.

    >>> named("no link to 3fa2aaaaaaaaaaaa", {"3fa2aaaaaaaaaaaa": "pi-a"})
    'no link to pi-a'
    """
    return _NODE.sub(lambda found: names.get(found[0], found[0]), text)
