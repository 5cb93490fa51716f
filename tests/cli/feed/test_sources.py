"""Sources of frames and what is made of them: folders, messages, topics, and a video file as a camera."""

from __future__ import annotations

import asyncio
import builtins
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepart.cli.feed.camera import camera_frames
from edgepart.cli.feed.contents import FrameReader
from edgepart.cli.feed.folder import NewFiles, files_in, files_of
from edgepart.cli.feed.frames import FeedFrame
from edgepart.cli.feed.topics import check_topics
from edgepart.planner.errors import EdgepartError, NotInstalled, RequestError, Unavailable, UsageError

ONE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3, 4, 4]}]}
FLAT = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}]}
TWO = {"inputs": [*FLAT["inputs"], {"name": "n", "datatype": "INT64", "shape": [1]}]}


def read(metadata: Any, content: Any, told: list[str] | None = None) -> dict[str, Any]:
    reader = FrameReader(metadata, "", print if told is None else told.append)
    return reader.inputs(FeedFrame(1, "cams/door", content, 0.0))


def npy(array: Any) -> bytes:
    packed = io.BytesIO()
    np.save(packed, array)
    return packed.getvalue()


def photo(*, colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    from PIL import Image

    packed = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(packed, "PNG")
    return packed.getvalue()


# Contents


def test_messages_are_arrays_lists_and_pictures() -> None:
    assert read(FLAT, npy(np.array([1, 2], np.float32)))["x"].tolist() == [1, 2]
    listed = read(FLAT, b" [1, 2.5]")["x"]
    assert listed.tolist() == [1, 2.5] and listed.dtype == np.float32
    both = read(TWO, json.dumps({"x": [1, 2], "n": [7]}).encode())
    assert both["n"].tolist() == [7] and both["n"].dtype == np.int64
    told: list[str] = []
    assert read(ONE, photo(), told)["x"].shape == (1, 3, 4, 4)
    assert len(told) == 1 and "--picture changes that" in told[0]


def test_a_picture_is_the_same_from_a_file_a_message_and_a_camera(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(photo(colour=(200, 100, 50)))
    pixels = np.full((6, 8, 3), (50, 100, 200), np.uint8)  # As OpenCV gives it: blue, green, red.
    of_file, of_message, of_camera = (read(ONE, one)["x"] for one in (path, path.read_bytes(), pixels))
    assert np.array_equal(of_file, of_message) and np.array_equal(of_file, of_camera)


@pytest.mark.parametrize(
    ("metadata", "content", "kind", "says"),
    [
        (ONE, b"", UsageError, "cams/door: is no picture"),
        (ONE, b"\xff\xd8\xff garbage", UsageError, "cams/door: is no picture"),
        (FLAT, b"\x93NUMPY\x01", UsageError, "no whole .npy file"),
        (FLAT, npy(np.array([{}], object)), UsageError, "no whole .npy file"),
        (FLAT, b"[1, ", UsageError, "begins as JSON"),
        (FLAT, b"[" * 100_000, UsageError, "begins as JSON"),
        (FLAT, b'["a", "b"]', RequestError, "cams/door"),
        (FLAT, b'{"y": [1]}', RequestError, "no inputs \\['y'\\]"),
        (TWO, b"[1, 2]", UsageError, "has inputs \\['n', 'x'\\]"),
        (TWO, photo(), UsageError, "a picture is one"),
        (FLAT, photo(), UsageError, "takes no picture"),
    ],
)
def test_contents_that_fit_no_model_are_refused(
    metadata: Any, content: bytes, kind: type[EdgepartError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        read(metadata, content)


def test_a_file_that_is_no_frame_is_named(tmp_path: Path) -> None:
    for name in ("a.npy", "a.jpg", "a.json"):
        (tmp_path / name).write_bytes(b"[")
        with pytest.raises(UsageError, match=f"^{tmp_path}/{name}: "):
            read(ONE, tmp_path / name)


# Folders


def test_a_file_counts_once_it_is_whole_and_again_when_it_is_written_anew() -> None:
    new = NewFiles({"old": (1, 1)})
    assert new.look({"old": (1, 1), "a": (2, 5), "b": (1, 5)}) == []  # They may still be written.
    assert new.look({"old": (1, 1), "a": (2, 9), "b": (1, 5)}) == ["b"]
    assert new.look({"old": (1, 1), "a": (2, 9), "b": (1, 5)}) == ["a"]
    assert new.look({"old": (4, 1), "a": (2, 9)}) == []
    assert new.look({"old": (4, 1), "a": (2, 9)}) == ["old"]
    assert new.look({}) == []
    for expected in ([], ["a"]):  # It was gone, and is there again.
        assert new.look({"a": (2, 9)}) == expected


def test_a_folder_gives_the_files_that_are_there_oldest_first(tmp_path: Path) -> None:
    for name in ("b.npy", "a.JPG", "notes.txt", ".c.npy"):
        (tmp_path / name).touch()
    (tmp_path / "d.npy").mkdir()
    assert set(files_in(tmp_path)) == {"a.JPG", "b.npy"}

    async def names() -> list[str]:
        return [name async for name, _ in files_of(tmp_path, once=True)]

    os.utime(tmp_path / "b.npy", (1, 1))
    assert asyncio.run(names()) == ["b.npy", "a.JPG"]


def test_a_folder_gives_what_appears(tmp_path: Path) -> None:
    (tmp_path / "old.npy").touch()

    async def first() -> str:
        files = files_of(tmp_path, once=False)
        waiting = asyncio.ensure_future(anext(files))
        await asyncio.sleep(0)
        (tmp_path / "new.npy").touch()
        name, path = await waiting
        await files.aclose()
        assert path == tmp_path / "new.npy"
        return name

    assert asyncio.run(first()) == "new.npy"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(UsageError, match=f"--folder {path}"):
            files_in(path)


# Topics


@pytest.mark.parametrize(
    ("topic", "written", "says"),
    [
        ("", None, "no topic"),
        ("a\0", None, "no topic"),
        ("a/b#", None, "whole level"),
        ("a/#/b", None, "whole level"),
        ("a+/b", None, "whole level"),
        (None, "a/+", "one topic"),
        ("a/+", "a/b", "would read the answers"),
        ("#", "a/b", "would read the answers"),
        ("a/#", "a", "would read the answers"),
    ],
)
def test_topics_that_cannot_work_are_refused(topic: str | None, written: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_topics(topic, written)


@pytest.mark.parametrize(("topic", "written"), [("a/+/c", "a/b"), ("a", "b"), (None, "a"), ("+/x/#", None)])
def test_topics_that_work_are_taken(topic: str | None, written: str | None) -> None:
    check_topics(topic, written)


# Cameras


def test_a_video_file_gives_its_pictures(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "film.avi"
    film = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 16))
    for grey in (0, 100, 200):
        film.write(np.full((16, 32, 3), grey, np.uint8))
    film.release()

    async def means() -> list[float]:
        return [float(picture.mean()) async for _, picture in camera_frames(str(path))]

    assert asyncio.run(means()) == pytest.approx([0, 100, 200], abs=5)


class SilentCamera:
    """A camera of OpenCV that opens and gives no picture."""

    released = 0

    def __init__(self, place: str | int) -> None:
        assert place == 0

    def isOpened(self) -> bool:
        return True

    def read(self) -> tuple[bool, None]:
        return False, None

    def release(self) -> None:
        SilentCamera.released += 1


def pictures_of(place: str) -> list[Any]:
    async def run() -> list[Any]:
        return [picture async for _, picture in camera_frames(place)]

    return asyncio.run(run())


def test_a_camera_without_pictures_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    monkeypatch.setattr(cv2, "VideoCapture", SilentCamera)
    with pytest.raises(Unavailable, match="gives no pictures"):
        pictures_of("0")
    assert SilentCamera.released == 1


def test_a_camera_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    with pytest.raises(UsageError, match="there is no such device"):
        pictures_of(str(tmp_path / "video0"))
    (tmp_path / "no-film.avi").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="cannot open it"):
        pictures_of(str(tmp_path / "no-film.avi"))

    really_import = builtins.__import__

    def without_opencv(name: str, *rest: Any) -> Any:
        if name == "cv2":
            raise ImportError(name)
        return really_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_opencv)
    with pytest.raises(NotInstalled, match="edgepart\\[camera\\]"):
        pictures_of("0")
