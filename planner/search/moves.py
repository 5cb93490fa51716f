"""Moves: small steps from choices for layers to other choices, whichever strategy made them. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Shares, Whole

Choices = Mapping[int, Choice]
"""A choice for each layer, by number of the layer."""

DIGITS = 4
"""The decimal places to which a share (of 1 in total) is rounded. Finer differences do not change where a
layer is cut."""


def rescale(choices: Choices, factors: Mapping[str, float]) -> dict[int, Choice]:
    """Multiplies each device's part of every division by its factor; whole layers stay where they are."""

    def shares(before: Shares) -> Shares:
        found = [(name, share * factors.get(name, 1.0)) for name, share in before]
        total = sum(share for _, share in found)
        return tuple((name, round(share / total, DIGITS)) for name, share in found)

    return {number: _with_shares(choice, shares) for number, choice in choices.items()}


def leave_out(choices: Choices, device: str, instead: str) -> dict[int, Choice]:
    """Leaves nothing to `device`: its parts go to the devices that share the layer, and layers that it has
    alone go to `instead`."""

    def shares(before: Shares) -> Shares:
        return tuple((name, share) for name, share in before if name != device) or ((instead, 1.0),)

    def rest(devices: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in devices if name != device) or (instead,)

    return {number: _with_devices(choice, shares, rest) for number, choice in choices.items()}


def hand_over(choices: Choices, device: str, heir: str) -> dict[int, Choice]:
    """Gives all that `device` has to the heir: its place, or its part where the heir has one already."""

    def shares(before: Shares) -> Shares:
        found: dict[str, float] = {}
        for name, share in before:
            name = heir if name == device else name
            found[name] = found.get(name, 0.0) + share
        return tuple(found.items())

    def rest(devices: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(heir if name == device else name for name in devices))

    return {number: _with_devices(choice, shares, rest) for number, choice in choices.items()}


def widen(choices: Choices, axes: Iterable[str]) -> dict[int, Choice]:
    """Makes divisions along `axes` compute their borders twice instead of fetching them."""
    wanted = set(axes)
    return {
        number: replace(choice, widened=True)
        if isinstance(choice, Divide) and wanted.issuperset(choice.axes)
        else choice
        for number, choice in choices.items()
    }


def devices_of(choices: Choices) -> tuple[str, ...]:
    """The devices that any choice names, in the order in which they are first named."""
    found: dict[str, None] = {}
    for choice in choices.values():
        if isinstance(choice, Reduce):
            found.update((name, None) for name, _ in choice.shares)
            choice = choice.then
        if isinstance(choice, Whole):
            found.update(dict.fromkeys(choice.devices))
        elif isinstance(choice, Divide):
            found.update((name, None) for name, _ in choice.shares)
    return tuple(found)


def _with_devices(
    choice: Choice,
    shares: Callable[[Shares], Shares],
    devices: Callable[[Iterable[str]], tuple[str, ...]],
) -> Choice:
    """The choice with other shares, and on other devices where it is whole."""
    if isinstance(choice, Whole):
        return Whole(devices(choice.devices))
    if isinstance(choice, Reduce) and isinstance(choice.then, Whole):
        then = Whole(devices(choice.then.devices))
        return _simplify(replace(choice, shares=shares(choice.shares), then=then))
    return _simplify(_with_shares(choice, shares))


def _with_shares(choice: Choice, change: Callable[[Shares], Shares]) -> Choice:
    if isinstance(choice, Divide):
        shares = change(choice.shares)
        same = len(shares) == len(choice.shares)
        # A grid that lacks a tile is no grid: the parts are put in one row.
        return (
            replace(choice, shares=shares)
            if same
            else replace(choice, shares=shares, axes=choice.axes[:1], grid=())
        )
    if isinstance(choice, Reduce):
        then = _with_shares(choice.then, change)
        assert isinstance(then, Divide | Whole)
        return replace(choice, shares=change(choice.shares), then=then)
    return choice


def _simplify(choice: Choice) -> Choice:
    """The same choice, but a division that is left to a single device becomes whole on that device."""
    if isinstance(choice, Divide) and len(choice.shares) == 1:
        return Whole((choice.shares[0][0],))
    if isinstance(choice, Reduce) and len(choice.shares) == 1:
        then = _simplify(choice.then)
        assert not isinstance(then, Reduce | Pull)
        return then
    return choice
