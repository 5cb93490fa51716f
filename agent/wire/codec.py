"""The codec: turns a frozen dataclass into the header of a frame, and a header back into the dataclass. Rules: no door.

Fields may be str, int, float, bool, bytes, None, Enum, `tuple[T, ...]`, `tuple[A, B]`, `dict[K, V]`, nested
dataclasses, unions of these, and Any; `Annotated` gives a field its bounds (bounds.py). A header must fit the
annotations exactly: an unknown kind, a missing or additional field, a wrong type and a value out of bounds are FrameErrors,
which name the field. (An int is accepted as a float, but a bool is not accepted as an int.) Without bounds of its own an
int has at most 64 bits, and a float is not NaN.

A field that is marked as OPTIONAL may be missing, and then has its default; a field with that value is not written. So a
record can get a new field, and devices of an earlier release can read it as long as the field is not used.

The same code reads messages, files and the bodies of HTTP requests, so all three accept the same records.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from reprlib import repr as shortly  # a value from outside may be of any size and depth
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from edgepart.agent.wire.bounds import Bound
from edgepart.agent.wire.frames import Buffer, Frame
from edgepart.planner.errors import FrameError, InternalError

Kinds = Mapping[str, type[Any]]
"""The dataclasses that may be received, by kind."""
OPTIONAL = types.MappingProxyType({"optional": True})
"""The metadata of a dataclass's field that may be missing: `field(default=..., metadata=OPTIONAL)`."""
_Reader = Callable[[Any], Any]
T = TypeVar("T")


def kinds(*classes: type[Any]) -> Kinds:
    """Return a map from the name of each class to the class. InternalError if a class cannot be sent or two classes share
    a name."""
    registry = {cls.__name__: cls for cls in classes}
    if len(registry) != len(classes):
        raise InternalError("two classes of messages share a name")
    for cls in classes:
        if not is_dataclass(cls):
            raise InternalError(f"{cls.__name__} is no dataclass")
        _record(cls)
    return types.MappingProxyType(registry)


def message_to_frame(message: Any, payload: Sequence[Buffer] = ()) -> Frame:
    """Return `message` (a dataclass instance) as a frame with this payload."""
    return Frame(type(message).__name__, _plain(message), tuple(payload))


def frame_to_message(frame: Frame, registry: Kinds) -> Any:
    """Return an instance of the class that `frame.kind` names. FrameError if the frame does not fit the class."""
    cls = registry.get(frame.kind)
    if cls is None:
        raise FrameError(f"unknown kind of message {frame.kind[:80]!r}")
    return _record(cls)(frame.header)


def read_record(cls: type[T], document: Any) -> T:
    """Read an instance of a dataclass from unpacked MessagePack. FrameError if the document does not fit the class."""
    found: T = _record(cls)(document)
    return found


def read_json_record(cls: type[T], document: Any, given: T | None = None) -> T:
    """Read an instance of a dataclass from parsed JSON. Fields that the document lacks are taken from `given`. FrameError
    if the document does not fit the class or is nested too deeply."""
    if given is not None and type(document) is dict:
        document = _plain(given) | document
    try:
        return read_record(cls, _tuples(document))
    except RecursionError:
        raise FrameError(f"{cls.__name__}: it is nested too deeply") from None


def json_record(record: Any) -> Any:
    """Return a dataclass instance as a document that `read_json_record` reads."""
    return _plain(record)


def _tuples(document: Any) -> Any:
    """The document with its lists replaced by tuples."""
    if type(document) in (list, tuple):
        return tuple(map(_tuples, document))
    if type(document) is dict:
        return {key: _tuples(item) for key, item in document.items()}
    return document


@cache
def _names(cls: type[Any]) -> tuple[str, ...] | None:
    """The names of a dataclass's fields; None for any other class."""
    return tuple(f.name for f in fields(cls)) if is_dataclass(cls) else None


@cache
def _defaults(cls: type[Any]) -> Mapping[str, Any]:
    """The defaults of a dataclass's optional fields, by name."""
    return {f.name: f.default for f in fields(cls) if f.metadata.get("optional")}


_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


def _plain(value: Any) -> Any:
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Enum):
        return value.value
    kind: Any = type(value)
    if (names := _names(kind)) is not None:
        found = {name: _plain(getattr(value, name)) for name in names}
        for name, default in _defaults(kind).items():
            if getattr(value, name) == default:
                del found[name]
        return found
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


@cache
def _reader(annotation: Any) -> _Reader:
    """A function that turns an unpacked MessagePack value into one that fits the annotation, or raises FrameError."""
    if annotation is Any:
        return lambda value: value
    if annotation is None or annotation is type(None):
        return _exactly(type(None))
    if annotation is float:
        return _float
    if annotation is int:
        return _int
    if annotation in (str, bool, bytes):
        return _exactly(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _record(annotation)
    return _generic(annotation)


def _generic(annotation: Any) -> _Reader:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _make_bounded(_reader(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _items(_reader(arguments[0]))
    if origin is tuple:
        return _pair(tuple(map(_reader, arguments)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _make_mapping(*map(_reader, arguments))
    raise InternalError(f"a message's field of type {annotation} cannot travel")


def _exactly(expected: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not expected:
            raise FrameError(f"expected {expected.__name__}, got {type(value).__name__}")
        return value

    return read


def _make_bounded(reader: _Reader, bounds: Sequence[Bound]) -> _Reader:
    def read(value: Any) -> Any:
        found = reader(value)
        for bound in bounds:
            if fault := bound.fault(found):
                raise FrameError(fault)
        return found

    return read


_MOST_INT = 1 << 63


def _int(value: Any) -> int:
    if type(value) is not int:
        raise FrameError(f"expected int, got {type(value).__name__}")
    if not -_MOST_INT <= value < _MOST_INT:  # an int in JSON may have any number of digits
        raise FrameError(f"{shortly(value)} has more than 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) not in (float, int):
        raise FrameError(f"expected float, got {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:
        raise FrameError("a number is larger than any float") from None
    if math.isnan(found):
        raise FrameError("NaN is no number")
    return found


def _enum(cls: type[Enum]) -> _Reader:
    def read(value: Any) -> Enum:
        try:
            return cls(value)
        except ValueError:
            raise FrameError(f"{shortly(value)} is no {cls.__name__}") from None

    return read


def _items(item: _Reader) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise FrameError(f"expected a sequence, got {type(value).__name__}")
        return tuple(map(item, value))

    return read


def _pair(items: tuple[_Reader, ...]) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(items):
            raise FrameError(f"expected a sequence of {len(items)}")
        return tuple(reader(item) for reader, item in zip(items, value, strict=True))

    return read


def _make_mapping(key: _Reader, item: _Reader) -> _Reader:
    def read(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise FrameError(f"expected a map, got {type(value).__name__}")
        read: dict[Any, Any] = {}
        for name, entry in value.items():
            try:
                read[key(name)] = item(entry)
            except FrameError as error:
                raise FrameError(_within(f"[{shortly(name)}]", error)) from error
        return read

    return read


def _union(members: tuple[Any, ...]) -> _Reader:
    shapes = [frozenset(f.name for f in fields(m)) for m in members if is_dataclass(m)]
    if len(set(shapes)) != len(shapes):
        raise InternalError(f"the dataclasses of the union {members} cannot be told apart by their fields")
    readers = tuple(map(_reader, members))

    def read(value: Any) -> Any:
        refusals = []
        for reader in readers:
            try:
                return reader(value)
            except FrameError as error:
                refusals.append(str(error))
        raise FrameError("; ".join(refusals))

    return read


def _within(place: str, error: FrameError) -> str:
    """The text of an error, with the enclosing field or key before it."""
    text = str(error)
    return f"{place}{text}" if text.startswith("[") else f"{place}: {text}"


class _Record:
    """Reads one dataclass. Its readers are made after it, so that a dataclass may have fields of its own type."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls
        self._readers: dict[str, _Reader] | None = None
        kind: Any = cls
        self._optional = frozenset(_defaults(kind))

    def prepare(self) -> None:
        if self._readers is None:
            self._readers = {}
            hints = get_type_hints(self._cls, include_extras=True)
            self._readers.update({f.name: _reader(hints[f.name]) for f in fields(self._cls) if f.init})

    def __call__(self, value: Any) -> Any:
        readers, name = self._readers or {}, self._cls.__name__
        if type(value) is not dict or value.keys() != readers.keys():
            if type(value) is not dict or (value.keys() ^ readers.keys()) - self._optional:
                raise FrameError(f"{name}: {_difference(value, readers.keys() - self._optional, readers)}")
            readers = {field: reader for field, reader in readers.items() if field in value}
        read: dict[str, Any] = {}
        for field, reader in readers.items():
            try:
                read[field] = reader(value[field])
            except FrameError as error:
                raise FrameError(_within(f"{name}.{field}", error)) from error
        try:
            return self._cls(**read)
        except (ValueError, TypeError) as error:
            raise FrameError(f"{name} refuses its fields: {error}") from error


_RECORDS: dict[type[Any], _Record] = {}


def _record(cls: type[Any]) -> _Record:
    record = _RECORDS.setdefault(cls, _Record(cls))
    record.prepare()
    return record


def _difference(value: Any, needed: Iterable[str], known: Iterable[str]) -> str:
    if type(value) is not dict:
        return f"expected fields, got {type(value).__name__}"
    missing, extra = sorted(set(needed) - value.keys()), sorted(map(str, value.keys() - set(known)))
    return f"fields missing: {missing}, unknown: {extra[:5]}"
