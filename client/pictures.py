"""Pictures: a photo, or a picture of a camera, as the input of a model. Door: it reads the file, with Pillow.

Models do not say how their pictures are prepared. The input's shape and datatype tell the size, the place of the channels
and whether numbers are bytes; the rest is what most models were trained with, unless the user says otherwise, and is said
in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgepart.agent.gateway.oip_elements import numpy_dtype
from edgepart.planner.errors import NotInstalled, UsageError
from edgepart.planner.region import Array

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
MOST_SIDE = 1 << 14
SIDE = 224
"""The side of a picture where a model takes any."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Means and standard deviations of red, green and blue with which most classifiers were trained, for values from 0 to 1."""
ORDERS = ("rgb", "bgr", "grey")
FITS = ("crop", "stretch")
OPTIONS = "size=WIDTHxHEIGHT, order=rgb|bgr|grey, mean=R/G/B, std=R/G/B, range=255 or 1, fit=crop|stretch"


@dataclass(frozen=True)
class PictureForm:
    """How a picture becomes numbers."""

    width: int
    height: int
    channels_first: bool
    order: str
    """"rgb" or "bgr", or "grey" for one channel."""
    range: float
    """The value of white, before `mean` is subtracted and the result is divided by `std`."""
    mean: tuple[float, ...]
    """For red, green and blue, whatever the order; or one for all."""
    std: tuple[float, ...]
    fit: str = "crop"
    """"crop" cuts out the middle, "stretch" changes the proportions."""

    def __str__(self) -> str:
        how = "its middle, scaled" if self.fit == "crop" else "stretched"
        numbers = f"values from 0 to {self.range:g}"
        if any(self.mean) or any(one != 1 for one in self.std):
            mean, std = ("/".join(f"{one:g}" for one in values) for values in (self.mean, self.std))
            numbers += f", less the mean {mean}, divided by {std}"
        place = "channels first" if self.channels_first else "channels last"
        return f"{how} to {self.width}x{self.height}, {self.order}, {place}, {numbers}"


def form_of(entry: Mapping[str, Any], options: str) -> PictureForm:
    """The form for an input, described as in /v2/models/NAME. `options` is a list of KEY=VALUE with commas between them, as
    OPTIONS has them. Raises UsageError if the input takes no picture, or an option is wrong."""
    where, shape = f"input {entry['name']!r}", list(entry["shape"])
    if len(shape) != 4 or shape[0] not in (1, -1) or not {shape[1], shape[3]} & {1, 3}:
        raise UsageError(f"{where} has shape {shape}, which takes no picture: give it a .npy file")
    first = shape[1] in (1, 3)
    channels, height, width = (shape[1], *shape[2:]) if first else (shape[3], *shape[1:3])
    sides = (width if width > 0 else SIDE, height if height > 0 else SIDE)
    is_bytes = numpy_dtype(entry["datatype"]).kind in "iu"
    plain = is_bytes or channels == 1
    mean, std = ((0.0,), (1.0,)) if plain else IMAGENET
    order = "grey" if channels == 1 else "rgb"
    form = PictureForm(*sides, first, order, 255.0 if is_bytes else 1.0, mean, std)
    # A range comes first, because a mean and a deviation are for the range that they stand beside.
    for text in sorted(filter(None, map(str.strip, options.split(","))), key=lambda one: one[:5] != "range"):
        try:
            form = _changed(form, *text.partition("=")[::2])
        except ValueError:
            raise UsageError(f"--picture: {text!r} is none of {OPTIONS}") from None
    if max(len(form.mean), len(form.std)) > channels:
        raise UsageError(f"--picture {options!r}: {where} takes one channel, so mean and std are one number")
    if (form.order == "grey") != (channels == 1):
        raise UsageError(f"--picture {options!r}: {where} takes {channels} channels")
    if (width, height) != (form.width, form.height) and width > 0 and height > 0:
        raise UsageError(f"--picture {options!r}: {where} takes pictures of {width}x{height}")
    return form


def _changed(form: PictureForm, key: str, value: str) -> PictureForm:
    """The form with one option changed. Raises ValueError if there is no such option, or its value is wrong."""
    match key:
        case "size":
            width, height = (int(side) for side in value.split("x"))
            if 0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE:
                return replace(form, width=width, height=height)
        case "order" if value in ORDERS:
            return replace(form, order=value)
        case "fit" if value in FITS:
            return replace(form, fit=value)
        case "range" if 0 < float(value) < 1e6:
            return replace(form, range=float(value), mean=(0.0,), std=(1.0,))
        case "mean" | "std":
            numbers = tuple(float(one) for one in value.split("/"))
            if len(numbers) in (1, 3) and np.isfinite(numbers).all() and (key == "mean" or min(numbers) > 0):
                return replace(form, mean=numbers) if key == "mean" else replace(form, std=numbers)
    raise ValueError(key)


def read_picture(source: Path | BinaryIO, form: PictureForm, datatype: str, where: str = "") -> Array:
    """The picture as an array of shape [1, channels, height, width], or [1, height, width, channels], in the datatype.
    `where` names the source in errors; by default it is the option --input. Raises UsageError if it is no picture, and
    NotInstalled without Pillow."""
    image_module, image_ops = _pillow()
    try:
        with image_module.open(source) as opened:
            picture = image_ops.exif_transpose(opened).convert("L" if form.order == "grey" else "RGB")
    except (OSError, ValueError, image_module.DecompressionBombError) as error:
        place = where or f"--input {source}"
        raise UsageError(f"{place}: is no picture that can be read ({error})") from error
    return _array_of(picture, form, datatype)


def array_of_camera(pixels: Array, form: PictureForm, datatype: str) -> Array:
    """A camera's picture as `read_picture` gives a file's. `pixels` are bytes of shape [height, width, 3] whose channels
    are blue, green and red. Raises NotInstalled without Pillow."""
    image_module, _ = _pillow()
    picture = image_module.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
    return _array_of(picture.convert("L") if form.order == "grey" else picture, form, datatype)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise NotInstalled("pictures need Pillow: pip install 'edgepart[pictures]'") from None
    return Image, ImageOps


def _array_of(picture: Any, form: PictureForm, datatype: str) -> Array:
    """The picture, whose mode fits the form's channels, as an array."""
    _, image_ops = _pillow()
    size = (form.width, form.height)
    picture = image_ops.fit(picture, size) if form.fit == "crop" else picture.resize(size)
    values: Array = np.asarray(picture, np.float32).reshape(form.height, form.width, -1) * (
        form.range / 255.0
    )
    values = (values - np.array(form.mean, np.float32)) / np.array(form.std, np.float32)
    if form.order == "bgr":
        values = values[:, :, ::-1]
    if form.channels_first:
        values = values.transpose(2, 0, 1)
    dtype = numpy_dtype(datatype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return np.ascontiguousarray(values[None].astype(dtype))
