"""Camera: pictures of a camera, a stream or a video file as frames. Door: OpenCV, in a thread of its own.

OpenCV keeps a few pictures in a buffer. The thread takes each as soon as it is there, so that the buffer holds no old ones.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from edgepart.cli.feed.frames import Array
from edgepart.planner.errors import NotInstalled, Unavailable, UsageError


def open_camera(place: str) -> Any:
    """OpenCV's VideoCapture of a camera (/dev/video0, or its number), a URL (rtsp://...), or a video file. Raises
    NotInstalled without OpenCV, and UsageError if it cannot be opened."""
    try:
        import cv2
    except ImportError:
        raise NotInstalled("cameras need OpenCV: pip install 'edgepart[camera]'") from None
    if place.startswith("/"):
        if not Path(place).exists():
            there = ", ".join(sorted(map(str, Path("/dev").glob("video*")))) or "no camera"
            raise UsageError(f"--camera {place}: there is no such device; this machine has {there}")
        if not os.access(place, os.R_OK):
            raise UsageError(
                f"--camera {place}: this user may not read it; `sudo usermod -aG video $USER`, and log in again"
            )
    capture = cv2.VideoCapture(int(place) if place.isdecimal() else place)
    if not capture.isOpened():
        capture.release()
        raise UsageError(f"--camera {place}: OpenCV cannot open it; another program may use it")
    return capture


async def camera_frames(place: str) -> AsyncGenerator[tuple[str, Array], None]:
    """The place and its pictures, of shape [height, width, 3] with blue, green and red, until a file ends. Raises what
    `open_camera` raises, and Unavailable if the camera gives no picture at all."""
    capture = await asyncio.to_thread(open_camera, place)
    loop = asyncio.get_running_loop()
    pictures: asyncio.Queue[Array | None] = asyncio.Queue()
    stopped = threading.Event()

    def read() -> None:
        try:
            while not stopped.is_set():
                good, picture = capture.read()
                if not good:
                    break
                loop.call_soon_threadsafe(pictures.put_nowait, picture)
        finally:
            capture.release()
            if not stopped.is_set():
                loop.call_soon_threadsafe(pictures.put_nowait, None)

    reader = threading.Thread(target=read, name="camera", daemon=True)
    reader.start()
    came = 0
    try:
        while (picture := await pictures.get()) is not None:
            came += 1
            yield place, picture
    finally:
        stopped.set()
        await asyncio.to_thread(reader.join, 2.0)
    if not came:
        raise Unavailable(f"--camera {place}: it gives no pictures")
