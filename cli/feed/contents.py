"""Contents: a frame as the inputs of a model: a picture, a .npy array, or JSON. Rules, but for the files that frames name.

Pictures are prepared as `edgepart infer` does it (client/pictures.py), and what is assumed of them is told once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgepart.cli.feed.frames import Array, FeedFrame
from edgepart.cli.tensors import array_from_lists, read_inputs
from edgepart.client.pictures import ENDINGS, PictureForm, array_of_camera, form_of, read_picture
from edgepart.planner.errors import RequestError, UsageError, UserError

NUMPY_MAGIC = b"\x93NUMPY"
ENDINGS_READ = (*ENDINGS, ".npy", ".npz", ".json")
"""The endings of files that hold frames."""


class FrameReader:
    """Makes frames the inputs of one deployment. Its calls may run in other threads."""

    def __init__(self, metadata: Mapping[str, Any], picture: str, tell: Callable[[str], None]) -> None:
        """`metadata` is what /v2/models/NAME says, `picture` says how pictures are prepared, and `tell` is told what is
        assumed of them. Raises UsageError if `picture` is wrong."""
        self._metadata = metadata
        self._entries: dict[str, Mapping[str, Any]] = {entry["name"]: entry for entry in metadata["inputs"]}
        self._picture = picture
        self._tell = tell
        self._form: PictureForm | None = None
        if picture:
            self._form_of_pictures()

    def inputs(self, frame: FeedFrame) -> dict[str, Array]:
        """The inputs by name. Raises UsageError or RequestError if the frame cannot be one of this model."""
        content = frame.content
        if isinstance(content, Path):
            return self._of_file(content)
        if isinstance(content, bytes):
            return self._of_message(content, frame.source)
        entry, form = self._form_of_pictures()
        return {entry["name"]: array_of_camera(content, form, entry["datatype"])}

    def _of_file(self, path: Path) -> dict[str, Array]:
        if path.suffix.lower() not in ENDINGS:
            try:
                return read_inputs([str(path.absolute())], self._metadata)
            except UserError as error:  # There is no option --input here.
                raise type(error)(str(error).removeprefix("--input ")) from error
        entry, form = self._form_of_pictures()
        return {entry["name"]: read_picture(path, form, entry["datatype"], str(path))}

    def _of_message(self, payload: bytes, where: str) -> dict[str, Array]:
        if payload.startswith(NUMPY_MAGIC):
            try:
                array: Array = np.load(io.BytesIO(payload), allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise UsageError(
                    f"{where}: the message is no whole .npy file of numbers ({error})"
                ) from error
            return {self._only_input("an array")["name"]: array}
        if payload.lstrip()[:1] in (b"[", b"{"):
            return self._of_json(payload, where)
        entry, form = self._form_of_pictures()
        return {entry["name"]: read_picture(io.BytesIO(payload), form, entry["datatype"], where)}

    def _of_json(self, payload: bytes, where: str) -> dict[str, Array]:
        """A list is the only input; an object has an array for each input."""
        try:
            document = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: the message begins as JSON, and is none ({error})") from error
        if isinstance(document, list):
            document = {self._only_input("an array")["name"]: document}
        if unknown := sorted(document.keys() - self._entries.keys()):
            raise RequestError(f"{where}: the model has no inputs {unknown}; it has {sorted(self._entries)}")
        return {
            name: array_from_lists(data, self._entries[name], f"{where}, input {name!r}")
            for name, data in document.items()
        }

    def _form_of_pictures(self) -> tuple[Mapping[str, Any], PictureForm]:
        entry = self._only_input("a picture")
        if self._form is None:
            self._form = form_of(entry, self._picture)
            self._tell(f"pictures for input {entry['name']}: {self._form} (--picture changes that)")
        return entry, self._form

    def _only_input(self, what: str) -> Mapping[str, Any]:
        if len(self._entries) != 1:
            raise UsageError(
                f"the model has inputs {sorted(self._entries)}, and {what} is one: use .npz files, or JSON objects with "
                "an array for each input"
            )
        return next(iter(self._entries.values()))
