"""OpenAI fields: reads single fields of a request body, with errors that name them. Rules: no door.

A field that is null counts as not given, as OpenAI's own server takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from edgepart.planner.errors import RequestError


class FieldError(RequestError):
    """A field of the body cannot be used. Nothing was run."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"`{field}`: {message}")
        self.field = field
        """The path of the field, such as "messages[0].role"."""


class Fields:
    """The fields of one object in a body."""

    def __init__(self, document: Mapping[str, Any], where: str = "") -> None:
        """`where` is the object's own path; "" for the body."""
        self._document = document
        self._where = where

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def get(self, name: str) -> Any:
        """Return a field as it is; None if it is not given."""
        return self._document.get(name)

    def refuse(self, name: str, message: str) -> NoReturn:
        raise FieldError(self.path(name), message)

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.refuse(name, f"give a number from {least:g} to {most:g}, not {shown(value)}")
        return float(value)

    def count(self, name: str, least: int, most: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not is_count(value, least, most):
            self.refuse(name, f"give a whole number from {least} to {most}, not {shown(value)}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, f"give true or false, not {shown(value)}")
        return bool(value)

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, f"give a text, not {shown(value)}")
        return value

    def inner(self, name: str) -> Fields:
        """Return the fields of an object in this one, which are none if it is not given."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, f"give an object, not {shown(value)}")
        return Fields(value or {}, self.path(name))


def is_count(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def shown(value: Any) -> str:
    """Return a value as an error shows it: numbers as they are, short texts quoted, and only the kind of all else.

    >>> shown(3), shown("x"), shown([1, 2]), shown(None)
    ('3', "'x'", 'a list', 'null')
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            return repr(value) if len(value) <= 40 else f"a text of {len(value)} characters"
        case list():
            return "a list"
    return "an object"
