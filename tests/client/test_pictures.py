"""Photos as inputs: what is guessed from the input, what the user may say, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgepart.client.pictures import IMAGENET, form_of, read_picture
from edgepart.planner.errors import NotInstalled, UsageError


def entry(*shape: int, datatype: str = "FP32") -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": list(shape)}


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Red on the left, and blue on the right; twice as wide as high."""
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20, 0] = pixels[:, 20:, 2] = 255
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


def read(path: Path, about: dict[str, Any], options: str = "") -> Any:
    return read_picture(path, form_of(about, options), about["datatype"])


def test_a_classifier_gets_imagenets_numbers(photo: Path) -> None:
    about = entry(-1, 3, 10, 10)
    found = read(photo, about)
    assert (found.shape, found.dtype) == ((1, 3, 10, 10), np.float32)
    red, blue = np.array([1, 0, 0]), np.array([0, 0, 1])
    mean, std = map(np.array, IMAGENET)
    np.testing.assert_allclose(found[0, :, 5, 0], (red - mean) / std, rtol=1e-5)
    np.testing.assert_allclose(found[0, :, 5, 9], (blue - mean) / std, rtol=1e-5)
    assert "its middle, scaled to 10x10, rgb, channels first" in str(form_of(about, ""))
    assert "0.485/0.456/0.406" in str(form_of(about, ""))


def test_bytes_stay_bytes_and_channels_may_come_last(photo: Path) -> None:
    found = read(photo, entry(1, 10, 10, 3, datatype="UINT8"))
    assert (found.shape, found.dtype) == ((1, 10, 10, 3), np.uint8)
    assert found[0, 5, 0].tolist() == [255, 0, 0]


def test_a_free_size_is_that_of_most_classifiers_unless_the_user_says_one(photo: Path) -> None:
    assert read(photo, entry(1, 3, -1, -1)).shape == (1, 3, 224, 224)
    assert read(photo, entry(1, 3, -1, -1), "size=40x20,fit=stretch").shape == (1, 3, 20, 40)


def test_the_user_has_the_last_word(photo: Path) -> None:
    caffe = "order=bgr, mean=123/117/104, range=255"
    found = read(photo, entry(1, 3, 10, 10), caffe)
    np.testing.assert_allclose(found[0, :, 5, 0], [-104, -117, 255 - 123], rtol=1e-5)
    grey = read(photo, entry(1, 1, 10, 10), "mean=0.5,std=0.5")
    np.testing.assert_allclose(grey[0, 0, 5, 0], (76 / 255 - 0.5) / 0.5, rtol=1e-4)


def test_a_photo_that_was_taken_upright_is_upright(tmp_path: Path, photo: Path) -> None:
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(photo) as picture:
        picture.save(turned, exif=exif, quality=95)
    found = read(turned, entry(1, 20, 10, 3, datatype="UINT8"))
    assert found[0, 0, 5, 0] > 200 > 50 > found[0, 19, 5, 0]


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((1, 1000), "", "takes no picture"),
        ((4, 3, 8, 8), "", "takes no picture"),
        ((1, 7, 8, 8), "", "takes no picture"),
        ((1, 3, 8, 8), "size=9x9", "takes pictures of 8x8"),
        ((1, 3, -1, -1), "size=0x9", "none of size="),
        ((1, 3, -1, -1), "size=9", "none of size="),
        ((1, 3, 8, 8), "order=cmyk", "none of size="),
        ((1, 3, 8, 8), "order=grey", "3 channels"),
        ((1, 1, 8, 8), "order=bgr", "1 channels"),
        ((1, 1, 8, 8), "mean=1/2/3", "one number"),
        ((1, 3, 8, 8), "mean=1/2", "none of size="),
        ((1, 3, 8, 8), "std=0", "none of size="),
        ((1, 3, 8, 8), "mean=nan", "none of size="),
        ((1, 3, 8, 8), "range=-1", "none of size="),
        ((1, 3, 8, 8), "colour", "none of size="),
    ],
)
def test_what_makes_no_sense_is_refused(shape: tuple[int, ...], options: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        form_of(entry(*shape), options)


def test_files_that_are_no_pictures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    form = form_of(entry(1, 3, 8, 8), "")
    for data in (b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(40)):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=r"photo.jpg: is no picture"):
            read_picture(path, form, "FP32")
    with pytest.raises(UsageError, match="none"):
        read_picture(tmp_path / "none.png", form, "FP32")


def test_without_pillow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, photo: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(NotInstalled, match=r"pip install 'edgepart\[pictures\]'"):
        read(photo, entry(1, 3, 8, 8))
