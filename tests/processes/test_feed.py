"""`edgepart feed` as a process, with a real agent and a real mosquitto: frames are answered as one session over the whole
model answers them."""

from __future__ import annotations

import io
import itertools
import json
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.comparing import Values
from benchmarks.mosquitto import Mosquitto, program
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from edgepart.cli.local import LocalCluster
from tests.processes.asking import deploy, differences, run_alone, undeploy
from tests.processes.test_batches import saved

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(program() is None, reason="mosquitto is not installed"),
]

ARRAY = np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


def command(cluster: LocalCluster, *options: str) -> list[str]:
    return [sys.executable, "-m", "edgepart", "feed", "fed", "--state", str(cluster.first.state), *options]


def is_right(record: dict[str, Any], expected: Values) -> bool:
    found = {name: np.array(one["data"], one["dtype"]) for name, one in record["outputs"].items()}
    return not differences(found, expected)


def test_files_and_messages_are_answered(trio: LocalCluster, mosquitto: Mosquitto, tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", "n")
    deploy(trio, path, "fed")
    expected = run_alone(path, {"x": ARRAY})
    frames, written = tmp_path / "frames", tmp_path / "answers.jsonl"
    frames.mkdir()
    np.save(frames / "good.npy", ARRAY)
    (frames / "bad.jpg").write_bytes(b"no picture")
    ran = subprocess.run(
        command(trio, "--folder", str(frames), "--once", "--output", str(written), "--json"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1 and "2 frames in" in ran.stderr, ran.stderr
    records = {record["source"]: record for record in map(json.loads, written.read_text().splitlines())}
    assert is_right(records["good.npy"], expected) and "takes no picture" in records["bad.jpg"]["error"]
    summary = json.loads(ran.stdout)["summary"]
    assert (summary["answered"], summary["failed"], summary["dropped"]) == (1, 1, 0)

    answers: queue.Queue[Any] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda *message: answers.put(json.loads(message[2].payload))
    client.connect("127.0.0.1", mosquitto.port)
    client.subscribe("answers")
    client.loop_start()
    packed = io.BytesIO()
    np.save(packed, ARRAY)
    # Retained, so that the feed gets it whenever it has subscribed.
    client.publish("cams/door", packed.getvalue(), qos=1, retain=True)
    options = ("--mqtt", "cams/+", "--broker", mosquitto.url, "--to-topic", "answers")
    feed = subprocess.Popen(
        command(trio, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        first = answers.get(timeout=30)
        assert first["source"] == "cams/door" and is_right(first, expected)
        client.publish("cams/gate", json.dumps(ARRAY.tolist()), qos=1)
        assert is_right(answers.get(timeout=30), expected)
        feed.send_signal(signal.SIGINT)
        _, said = feed.communicate(timeout=30)
    finally:
        feed.kill()
        client.disconnect()
        client.loop_stop()
    assert feed.returncode == 0 and "2 frames in" in said and "2 answered" in said, said
    undeploy(trio, "fed")


FRAMES = 40


def test_no_frame_is_lost_with_the_agent_that_the_feeds_talk_to(
    victims: LocalCluster, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """Neither a file nor a message, as long as those that wait are not dropped."""
    path = saved(tmp_path / "net.onnx", "n")
    deploy(victims, path, "fed")
    expected = run_alone(path, {"x": ARRAY})
    frames, written = tmp_path / "frames", tmp_path / "answers.jsonl"
    frames.mkdir()
    answers: queue.Queue[Any] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda *message: answers.put(json.loads(message[2].payload))
    client.connect("127.0.0.1", mosquitto.port)
    client.subscribe("answers", qos=1)
    client.loop_start()
    packed = io.BytesIO()
    np.save(packed, ARRAY)
    client.publish("cams/first", packed.getvalue(), qos=1, retain=True)
    topics = ("--mqtt", "cams/#", "--broker", mosquitto.url, "--to-topic", "answers", "--waiting", "100")
    feeds = [
        subprocess.Popen(command(victims, *options), stderr=subprocess.PIPE, text=True)
        for options in (topics, ("--folder", str(frames), "--output", str(written)))
    ]
    try:
        found = [answers.get(timeout=60)]  # The feed has subscribed, and the agent answers.
        probes = itertools.count()
        wait_for(
            lambda: written.exists() and bool(written.read_text()),
            lambda: put(frames, f"probe{next(probes)}"),
        )
        for number in range(FRAMES):
            put(frames, str(number))
            client.publish(f"cams/{number}", packed.getvalue(), qos=1)
            if number == FRAMES // 4:
                victims.first.kill()
            if number >= FRAMES // 2:
                found.append(answers.get(timeout=60))
        while len(found) <= FRAMES:
            found.append(answers.get(timeout=60))
        assert all("error" not in record and is_right(record, expected) for record in found), found
        assert {record["source"] for record in found} == {
            "cams/first",
            *(f"cams/{number}" for number in range(FRAMES)),
        }
        wanted = {f"{number}.npy" for number in range(FRAMES)}
        wait_for(lambda: wanted <= {record["source"] for record in documents_in(written)})
        files = documents_in(written)
        assert all("error" not in record and is_right(record, expected) for record in files), files
        for feed in feeds:
            feed.send_signal(signal.SIGINT)
            said = feed.communicate(timeout=30)[1]
            assert feed.returncode == 0 and "failed" not in said and "dropped" not in said, said
    finally:
        for feed in feeds:
            feed.kill()
        client.disconnect()
        client.loop_stop()


def put(folder: Path, name: str) -> None:
    """A whole file appears in the folder."""
    np.save(folder / f".{name}.npy", ARRAY)
    (folder / f".{name}.npy").rename(folder / f"{name}.npy")


def documents_in(file: Path) -> list[dict[str, Any]]:
    whole, _, _ = file.read_text().rpartition("\n")  # The last line may still be written.
    return [json.loads(line) for line in whole.splitlines()]


def wait_for(condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        meanwhile()
        time.sleep(0.3)
