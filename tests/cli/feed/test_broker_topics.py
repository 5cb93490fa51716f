"""The feed's connection to a real mosquitto: it publishes without reading, and reads what others publish."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.mosquitto import Mosquitto, program

from edgepart.agent.mqtt.broker import parse_broker
from edgepart.cli.feed import topics
from edgepart.cli.feed.answers import PublishedAnswers
from edgepart.cli.feed.topics import BrokerTopics
from edgepart.planner.errors import Unavailable

pytestmark = pytest.mark.skipif(program() is None, reason="mosquitto is not installed")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


def test_answers_of_one_feed_are_frames_of_another(mosquitto: Mosquitto) -> None:
    broker = parse_broker(mosquitto.url)

    async def story() -> None:
        async with BrokerTopics(broker, "answers/+") as reading, BrokerTopics(broker, None) as writing:
            with PublishedAnswers(writing, "answers/door") as answers:
                answers.put({"frame": 1}, "")
            async with asyncio.timeout(20):
                topic, message = await anext(reading.frames())
            assert topic == "answers/door" and json.loads(message) == {"frame": 1}
            assert writing.unsent == 0

    asyncio.run(story())


def test_answers_without_a_broker_are_counted(mosquitto: Mosquitto) -> None:
    async def story() -> None:
        async with BrokerTopics(parse_broker(mosquitto.url), None) as writing:
            mosquitto.kill()
            async with asyncio.timeout(20):
                while not writing.unsent:
                    writing.publish("answers", b"{}")
                    await asyncio.sleep(0.01)

    asyncio.run(story())


def test_a_broker_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "CONNECT_S", 0.3)

    async def story() -> None:
        async with BrokerTopics(parse_broker("mqtt://127.0.0.1:1"), None):
            raise AssertionError("there is no broker")

    with pytest.raises(Unavailable, match="no connection to the broker"):
        asyncio.run(story())
