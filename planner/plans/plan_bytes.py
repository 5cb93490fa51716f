"""Plans as bytes: as they travel from the leader to the devices, and are kept on disk. Rules only.

Equal plans have equal bytes. What cannot be read as a plan, or has a field of another type than the records of plan.py
declare, is refused.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import msgpack

from edgepart.planner.errors import FrameError
from edgepart.planner.plans.plan import (
    ComputedTensor,
    KeptPiece,
    KeptState,
    Piece,
    Plan,
    Port,
    Program,
    Receive,
    Replica,
    Run,
    Segment,
    Send,
    Transfer,
    ValueInfo,
    WeightRef,
)
from edgepart.planner.region import Interval, Region

_STEPS: dict[str, type[Receive] | type[Run] | type[Send]] = {"receive": Receive, "run": Run, "send": Send}


def plan_to_bytes(plan: Plan) -> bytes:
    """The canonical serialisation: equal plans give equal bytes."""
    document = _pack(replace(plan, prefill=None, batch=None))
    for name, form in (("prefill", plan.prefill), ("batch", plan.batch)):
        if form is not None:
            document[name] = plan_to_bytes(form)
        else:
            del document[name]
    document["programs"] = [_pack(plan.programs[name]) for name in sorted(plan.programs)]
    if not plan.states:  # Agents that know no states can read plans without states.
        del document["states"]
        for program in document["programs"]:
            del program["kept"], program["sequences"]
    if not plan.mirrors:
        del document["mirrors"]
    if not plan.layers:
        del document["layers"]
    return bytes(msgpack.packb(document, use_bin_type=True))


def plan_from_bytes(data: bytes) -> Plan:
    """The plan that `plan_to_bytes` serialised. Raises FrameError if the bytes are not a plan."""
    try:
        document = msgpack.unpackb(data, raw=False)  # unpackb limits sizes to len(data).
        plan = Plan(
            model_digest=document["model_digest"],
            strategy=document["strategy"],
            programs={p["device"]: _program(p) for p in document["programs"]},
            transfers=tuple(_transfer(t) for t in document["transfers"]),
            inputs=tuple(map(_value, document["inputs"])),
            outputs=tuple(map(_value, document["outputs"])),
            constant_outputs=tuple(document["constant_outputs"]),
            predicted_latency_s=float(document["predicted_latency_s"]),
            predicted_throughput_per_s=float(document["predicted_throughput_per_s"]),
            why=document["why"],
            replicas=tuple(map(_replica, document["replicas"])),
            states=tuple(map(_kept_state, document.get("states", ()))),
            prefill=plan_from_bytes(document["prefill"]) if "prefill" in document else None,
            batch=plan_from_bytes(document["batch"]) if "batch" in document else None,
            mirrors=_mirrors(document.get("mirrors", {})),
            layers=tuple(map(_computed_tensor, document.get("layers", ()))),
        )
        _check_types(plan)
        return plan
    except (KeyError, TypeError, ValueError, AttributeError, msgpack.UnpackException) as error:
        raise FrameError(
            f"these {len(data)} bytes are not a plan: {type(error).__name__}: {error}"
        ) from error


def pack_region(region: Region) -> list[list[int]]:
    return [[bound for i in s for bound in (i.start, i.stop)] for s in region.spans]


def unpack_region(packed: Any) -> Region:
    return Region(tuple(tuple(Interval(*pair) for pair in zip(s[::2], s[1::2], strict=True)) for s in packed))


def _pack(value: Any) -> Any:
    match value:
        case Region():
            return pack_region(value)
        case Receive():
            return ["receive", value.transfer]
        case Run():
            return ["run", value.segment]
        case Send():
            return ["send", value.transfer]
        case tuple() | list():
            return [_pack(item) for item in value]
        case dict():
            return {key: _pack(item) for key, item in value.items()}
        case Segment(engine=""):  # Agents that know no engines can read plans that use none.
            return {
                name: _pack(getattr(value, name))
                for name in value.__dataclass_fields__
                if name not in ("engine", "times_cpu")
            }
        case _ if hasattr(value, "__dataclass_fields__"):
            return {name: _pack(getattr(value, name)) for name in value.__dataclass_fields__}
        case _:
            return value


def _mirrors(packed: Any) -> dict[str, str]:
    if not all(isinstance(name, str) for pair in packed.items() for name in pair):
        raise TypeError("mirrors are not names of devices")
    return dict(packed)


def _piece(packed: Any) -> Piece:
    return Piece(packed["tensor"], unpack_region(packed["region"]))


def _port(packed: Any) -> Port:
    return Port(packed["name"], _piece(packed["piece"]))


def _transfer(packed: Any) -> Transfer:
    pieces = tuple(map(_piece, packed["pieces"]))
    dtypes = tuple(packed["dtypes"])
    return Transfer(packed["number"], packed["source"], packed["target"], pieces, packed["nbytes"], dtypes)


def _computed_tensor(packed: Any) -> ComputedTensor:
    regions = {device: unpack_region(region) for device, region in packed["regions"].items()}
    shape = tuple(packed["shape"])
    if not all(isinstance(device, str) for device in regions):
        raise TypeError(f"{packed['tensor']!r} has regions of what are not names of devices")
    if any(region.rank != len(shape) for region in regions.values()):
        raise ValueError(f"{packed['tensor']!r} of shape {shape} has regions of another rank")
    return ComputedTensor(packed["tensor"], shape, regions)


def _value(packed: Any) -> ValueInfo:
    shape = None if packed["shape"] is None else tuple(packed["shape"])
    info = ValueInfo(packed["name"], packed["dtype"], shape, tuple(packed["free"]))
    if info.free and (shape is None or len(shape) != len(info.free)):
        raise ValueError(f"{info.name!r} of shape {shape} has free dimensions {info.free}")
    return info


def _replica(packed: Any) -> Replica:
    paces = (float(packed["latency_s"]), float(packed["between_s"]))
    return Replica(tuple(packed["devices"]), *paces)


def _weight(packed: Any) -> WeightRef:
    return WeightRef(**packed | {"region": unpack_region(packed["region"]), "shape": tuple(packed["shape"])})


def _segment(packed: Any) -> Segment:
    ports = {side: tuple(map(_port, packed[side])) for side in ("inputs", "outputs")}
    weights = tuple(map(_weight, packed["weights"]))
    return Segment(**packed | ports | {"weights": weights, "operators": tuple(packed["operators"])})


def _program(packed: Any) -> Program:
    steps = tuple(_STEPS[kind](number) for kind, number in packed["steps"])
    segments = tuple(map(_segment, packed["segments"]))
    kept = tuple(map(_kept_piece, packed.get("kept", ())))
    return Program(**packed | {"steps": steps, "segments": segments, "kept": kept})


def _kept_piece(packed: Any) -> KeptPiece:
    return KeptPiece(**packed | {side: _piece(packed[side]) for side in ("read", "written")})


def _kept_state(packed: Any) -> KeptState:
    return KeptState(**packed | {"input": _value(packed["input"])})


_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bytes": (bytes,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "tuple[str, ...]": (str,),
    "tuple[int, ...]": (int,),
    "tuple[int, ...] | None": (int,),
    "tuple[str | None, ...]": (str, type(None)),
}
"""Maps the declared type of a field to the types that its value, or each item of its value, may have."""


def _check_types(record: Any) -> None:
    """Raises TypeError if a field of a record, or of a record in it, does not have its declared type."""
    if isinstance(record, Interval):
        for name, bound in zip(record._fields, record, strict=True):
            if type(bound) is not int:
                raise TypeError(f"Interval.{name} is {bound!r:.50}")
    elif isinstance(record, tuple | dict):
        for item in record.values() if isinstance(record, dict) else record:
            _check_types(item)
    elif is_dataclass(record):
        for one in fields(record):
            value, kinds = getattr(record, one.name), _PLAIN.get(str(one.type))
            if kinds is None:
                _check_types(value)
                continue
            many = isinstance(value, tuple) and str(one.type).startswith("tuple")
            for item in value if many else () if value is None and "None" in str(one.type) else (value,):
                if not isinstance(item, kinds) or (isinstance(item, bool) and bool not in kinds):
                    raise TypeError(f"{type(record).__name__}.{one.name} is {value!r:.50}")
