"""Descriptions: what is written can be read again, and each fault is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.wire.inference import MOST_KEPT, DeployOptions
from edgepart.cli.describe.changes import DeployedState, DescribedVersion
from edgepart.cli.describe.description import MOST_CHARACTERS, read_description, write_description
from edgepart.cli.describe.option_keys import FOUND, KEYS, read_option, write_options
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.reduced_precision import KINDS
from edgepart.planner.vocabulary import AXES, OBJECTIVES, STRATEGIES

DIGEST = "9f" * 32
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=9)
options = st.builds(
    DeployOptions,
    shapes=st.dictionaries(texts, st.lists(st.integers(0, 300), max_size=4).map(tuple), max_size=3),
    objective=st.sampled_from(OBJECTIVES),
    strategy=st.sampled_from(STRATEGIES),
    axis=st.none() | st.sampled_from(AXES),
    devices=st.lists(texts, max_size=3).map(tuple),
    memory_limit_bytes=st.none() | st.integers(1, 2**40),
    bindings=st.integers(0, 64),
    search_budget_s=st.none() | st.floats(0.01, 600),
    transfer_dtype=st.sampled_from(KINDS),
    states=st.none() | st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    context=st.none() | st.integers(1, 9999),
    sequences=st.integers(1, 4096),
    mirrors=st.booleans(),
    keep=st.integers(0, MOST_KEPT),
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
digests = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
versions = st.builds(DescribedVersion, digests, options)
states = st.dictionaries(names, st.builds(DeployedState, st.integers(1, 9), versions), max_size=4)


@given(states)
@settings(max_examples=60)
def test_what_is_exported_is_read_as_it_was(there: dict[str, DeployedState]) -> None:
    found = read_description(write_description(there), "cluster.yaml")
    assert {one.name: DescribedVersion(one.digest, one.options) for one in found} == {
        name: state.now for name, state in there.items()
    }


@given(options)
@settings(max_examples=60)
def test_options_are_written_with_their_keys_and_read_by_them(given_options: DeployOptions) -> None:
    document = write_options(given_options)
    read = {KEYS[key].field: read_option(key, value) for key, value in document.items()}
    assert DeployOptions(**read) == given_options
    as_json = json.dumps({"deployments": {"m": {"model": "m", **document}}}, ensure_ascii=False)
    assert read_description(as_json, "x")[0].options == given_options


def test_every_option_has_a_key() -> None:
    assert {key.field for key in KEYS.values()} | FOUND == set(DeployOptions.__dataclass_fields__)
    assert write_options(DeployOptions()) == {}


def test_a_description_as_people_write_it() -> None:
    text = """
    # what our boxes run
    deployments:
      photos:
        model: models/resnet50.onnx
        shape: {x: [1, 3, 224, 224]}
        devices: [pi-a, pi-b]
        memory-limit: 2G
        keep: 0
      chat:
        model: https://example.org/chat.onnx
        digest: sha256:DIGEST
        no-states: true
      old: {digest: DIGEST, state-pair: [[hn, h]]}
    """.replace("DIGEST", DIGEST)
    photos, chat, old = read_description(text, "cluster.yaml")
    assert (photos.name, photos.model, photos.digest) == ("photos", "models/resnet50.onnx", "")
    assert photos.options == DeployOptions(
        shapes={"x": (1, 3, 224, 224)}, devices=("pi-a", "pi-b"), memory_limit_bytes=2 << 30, keep=0
    )
    assert (chat.digest, chat.options.states) == (DIGEST, ())
    assert (old.model, old.digest, old.options.states) == ("", DIGEST, (("hn", "h"),))
    assert old.place == "cluster.yaml:14:12"
    digits = "1234567890" * 6 + "1234"
    (found,) = read_description(f"deployments: {{a: {{digest: {digits}}}}}", "f")
    assert found.digest == digits, "which would be a number"


WRONG = [
    ("", "f: it is empty"),
    ("[]", "f:1:1: the description: expected keys and values, found a list"),
    ("deployment: {}", "f:1:13: there is no key 'deployment'; there is 'deployments'"),
    ("deployments:\n  photos:", "f:2:10: deployments.photos: expected keys and values, found nothing"),
    ("deployments:\n  photos: {}", "f:2:11: deployments.photos: give 'model'"),
    (
        "deployments:\n  a: {model: m}\n  b: {model: m}\n  a: {model: n}",
        "f:4:3: deployments: 'a' is given twice",
    ),
    ("deployments:\n  a/b: {model: m}", "f:2:8: deployment name 'a/b': up to 128 letters"),
    ("deployments:\n  on: {model: m}", "f:2:3: deployments: the key 'on' is no text; put quotes around it"),
    ("deployments:\n  1: {model: m}", "f:2:3: deployments: the key '1' is no text"),
    (
        "deployments:\n  a:\n    model: m\n    binding: 3",
        "f:4:14: deployments.a.binding: there is no such key; there are model",
    ),
    (
        "deployments:\n  a:\n    model: m\n    bindings: 65",
        "f:4:15: deployments.a.bindings: 65 is no whole number",
    ),
    (
        "deployments:\n  a:\n    model: m\n    bindings: true",
        "f:4:15: deployments.a.bindings: expected int, got bool",
    ),
    ("deployments:\n  a:\n    model: m\n    context: ten", "f:4:14: deployments.a.context: "),
    ("deployments:\n  a:\n    model: m\n    devices: pi-a", "f:4:14: deployments.a.devices: "),
    ("deployments:\n  a:\n    model: m\n    devices: [on]", "f:4:14: deployments.a.devices: "),
    ("deployments:\n  a:\n    model: m\n    axis: sideways", "f:4:11: deployments.a.axis: "),
    ("deployments:\n  a:\n    model: m\n    strategy: magic", "f:4:15: deployments.a.strategy: "),
    (
        "deployments:\n  a:\n    model: m\n    memory-limit: lots",
        "f:4:19: deployments.a.memory-limit: size 'lots': give a",
    ),
    ("deployments:\n  a:\n    model: m\n    memory-limit: 0", "f:4:19: deployments.a.memory-limit: "),
    ("deployments:\n  a:\n    model: m\n    shape: {x: [1, -2]}", "f:4:12: deployments.a.shape: "),
    ("deployments:\n  a:\n    model: m\n    shape: {x: [1], x: [2]}", "f:4:21: here: 'x' is given twice"),
    (
        "deployments:\n  a:\n    model: m\n    no-states: false",
        "f:4:16: deployments.a.no-states: only `true`",
    ),
    (
        "deployments:\n  a:\n    model: m\n    no-states: true\n    state-pair: []",
        "f:5:17: deployments.a.state-pair: it and 'no-states' exclude",
    ),
    ("deployments:\n  a:\n    model: 5", "f:3:12: deployments.a.model: expected a text, found 5"),
    ("deployments:\n  a:\n    model: ''", "f:3:12: deployments.a.model: expected a text"),
    (
        "deployments:\n  a:\n    model: http://example.org/m.onnx",
        "f:3:12: deployments.a.model: 'http://example.org/m.onnx': a model comes by",
    ),
    ("deployments:\n  a:\n    model: ftp://example.org/m.onnx", "f:3:12: deployments.a.model: "),
    (
        "deployments:\n  a:\n    digest: sha256:12",
        "f:3:13: deployments.a.digest: digest 'sha256:12': give sha256:",
    ),
    ("deployments:\n  a: &x {model: m}\n  b: *x", "f:3:6: aliases (*x) are not read"),
    (
        "deployments:\n  a:\n    model: m\n    keep: !!python/object:os.system 1",
        "f:4:11: deployments.a.keep: '1' is no value of the type",
    ),
    (
        "deployments:\n  a:\n    model: m\n    keep: !!int abc",
        "f:4:11: deployments.a.keep: 'abc' is no value of the type int",
    ),
    ("deployments: [", "f:1:15: this is no YAML"),
    ("a: b: c", "f:1:5: this is no YAML"),
    ("a: 1\n---\nb: 2", "this is no YAML"),
    ("\x00", "this is no YAML"),
    ("[" * 5000 + "]" * 5000, "f:1:9: more than 8 levels are nested"),
    ("#" * (MOST_CHARACTERS + 1), "f: 1048577 characters are more than 1048576"),
]


@pytest.mark.parametrize(("text", "why"), WRONG, ids=[why[:60] for _, why in WRONG])
def test_a_fault_is_named_with_its_place(text: str, why: str) -> None:
    with pytest.raises(UsageError) as found:
        read_description(text, "f")
    assert why in str(found.value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*KEYS, "model", "digest"]), plain, min_size=1, max_size=3))
@settings(max_examples=100)
def test_any_value_is_read_or_refused_with_its_place(entry: dict[str, Any]) -> None:
    text = yaml.safe_dump({"deployments": {"a": entry}})
    try:
        (found,) = read_description(text, "f")
    except UsageError as error:
        assert str(error).startswith("f:")
    else:
        assert found.model or found.digest
