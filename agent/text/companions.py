"""Companions: the files beside a model that say how text is made with it: its tokenizer, its chat template, which tokens
end a text, and how its authors want tokens chosen. Door: files.

They are those that transformers and ONNX Runtime GenAI write. Only `tokenizer.json` must be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepart.agent.text.generation import Sampling
from edgepart.agent.text.sampling import BOUNDS, check_sampling
from edgepart.agent.text.tokenizer import MOST_TOKEN, parse_tokenizer, read_limited
from edgepart.planner.errors import ModelError, NotInstalled, RequestError
from edgepart.planner.json_text import parse_json

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
GENAI_CONFIG = "genai_config.json"
NAMES = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, TEMPLATE_JSON, CONFIG, GENERATION_CONFIG, GENAI_CONFIG)

MOST_TEMPLATE_CHARACTERS = 1 << 20
USUAL_TOP_K = 50
"""What transformers and GenAI take for top_k if a file asks for sampling and does not name it."""
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Options of sampling that the files may name."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What the files beside a model say."""

    names: tuple[str, ...]
    """Names of the files that were found. They must be stored with the model."""
    template: str | None = None
    """The chat template, as Jinja text; None if the model has none."""
    bos: str | None = None
    """The text of the token with which a text begins, which the template may ask for."""
    eos: str | None = None
    """The text of the token with which a text ends. The tokenizer knows its id."""
    adds_bos: bool | None = None
    """Whether tokens of a text begin with the begin token (`add_bos_token`); None leaves it to the tokenizer."""
    bos_token: int | None = None
    end_tokens: frozenset[int] = frozenset()
    """All tokens at which a text ends, as far as files give their ids."""
    context: int | None = None
    """The most tokens of a prompt and its answer together that the model was made for."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    """How tokens are chosen if the client does not say."""


def read_companions(folder: Path) -> TextFiles:
    """Read the files in a model's folder. Raises ModelError, with the file's name, if one cannot be used."""
    found = {name: folder / name for name in NAMES if (folder / name).is_file()}
    if TOKENIZER not in found:
        raise ModelError(
            f"{folder}: there is no {TOKENIZER}, which text needs; save it there with `save_pretrained` of transformers, "
            "or copy it from where the model comes from. Nothing was stored"
        )
    return parse_companions({name: read_limited(path) for name, path in found.items()})


def check_tokenizer(path: Path) -> None:
    """Raises ModelError if the file is no tokenizer. Where the package tokenizers is not installed, only its JSON is looked
    at, as other agents may have the package."""
    data = read_limited(path)
    try:
        parse_tokenizer(data, path.name)
    except NotInstalled:
        _parse(path.name, data)


def parse_companions(files: Mapping[str, bytes]) -> TextFiles:
    """What these files say, by their names; the contents of `tokenizer.json` do not matter here. Raises ModelError."""
    documents = {
        name: _parse(name, data) for name, data in files.items() if name not in (TOKENIZER, TEMPLATE)
    }
    tokenizer = documents.get(TOKENIZER_CONFIG, {})
    genai = _object(GENAI_CONFIG, documents.get(GENAI_CONFIG, {}), "model")
    ends: frozenset[int] = frozenset()
    for name in (CONFIG, GENERATION_CONFIG):
        ends |= _tokens(name, documents.get(name, {}), "eos_token_id")
    begins = _tokens(GENAI_CONFIG, genai, "bos_token_id") or _tokens(
        CONFIG, documents.get(CONFIG, {}), "bos_token_id"
    )
    adds_bos = tokenizer.get("add_bos_token")
    if not isinstance(adds_bos, bool | None):
        raise _wrong(TOKENIZER_CONFIG, "add_bos_token", adds_bos, "true or false")
    return TextFiles(
        names=tuple(name for name in NAMES if name in files),
        template=_template(files, documents),
        bos=_token_text(tokenizer, "bos_token"),
        eos=_token_text(tokenizer, "eos_token"),
        adds_bos=adds_bos,
        bos_token=min(begins, default=None),
        end_tokens=ends | _tokens(GENAI_CONFIG, genai, "eos_token_id"),
        context=_context(documents, genai),
        sampling=_sampling(documents),
    )


def _parse(name: str, data: bytes) -> Document:
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ModelError(
            f"{name}: it is not JSON ({error}); download or save the file again, or take it out of the folder. "
            "Nothing was stored"
        ) from error
    if not isinstance(document, dict):
        raise ModelError(
            f"{name}: it must be a JSON object, and is another value; download or save it again. Nothing was stored"
        )
    return document


def _wrong(name: str, key: str, value: object, must: str) -> ModelError:
    return ModelError(
        f"{name}: {key!r} must be {must}, and is {repr(value)[:60]}; correct the file. Nothing was stored"
    )


def _object(name: str, document: Document, key: str) -> Document:
    value = document.get(key)
    if not isinstance(value, dict | None):
        raise _wrong(name, key, value, "an object")
    return value or {}


def _tokens(name: str, document: Document, key: str) -> frozenset[int]:
    """Return the ids under the key: one, several or none."""
    value = document.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MOST_TOKEN:
            raise _wrong(name, key, value, "the number of a token, or a list of such numbers")
    return frozenset(ids)


def _token_text(tokenizer: Document, key: str) -> str | None:
    """Return a special token's text, which is given as it is, or in an object that says more of the token."""
    value = tokenizer.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if isinstance(text, str) or value is None:
        return text
    raise _wrong(TOKENIZER_CONFIG, key, value, "a text, or an object with its text as 'content'")


def _template(files: Mapping[str, bytes], documents: Mapping[str, Document]) -> str | None:
    """Return the chat template. A file of its own is what newer versions of transformers write, and goes first."""
    name, text = TEMPLATE, None
    if TEMPLATE in files:
        try:
            text = files[TEMPLATE].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{TEMPLATE}: it is not UTF-8 ({error}); save it again. Nothing was stored"
            ) from error
    for name in (TEMPLATE_JSON, TOKENIZER_CONFIG) if text is None else ():
        text = _chosen_template(name, documents.get(name, {}).get("chat_template"))
        if text is not None:
            break
    if text is not None and len(text) > MOST_TEMPLATE_CHARACTERS:
        raise ModelError(
            f"{name}: the chat template has {len(text)} characters, and {MOST_TEMPLATE_CHARACTERS} are allowed; "
            "nothing was stored"
        )
    return text


def _chosen_template(name: str, value: object) -> str | None:
    """Return the text, or of several named ones the one named "default", or else the first."""
    if isinstance(value, str | None):
        return value
    named: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [None]:
        match entry:
            case {"name": str(key), "template": str(text)}:
                named.setdefault(key, text)
            case _:
                raise _wrong(name, "chat_template", value, "a text, or a list of names and templates")
    return named.get("default", next(iter(named.values()), None))


def _context(documents: Mapping[str, Document], genai: Document) -> int | None:
    config = documents.get(CONFIG, {})
    inner = _object(CONFIG, config, "text_config")  # where models that also see keep what is about text
    for name, document, key in (
        (GENAI_CONFIG, genai, "context_length"),
        (CONFIG, config, "max_position_embeddings"),
        (CONFIG, inner, "max_position_embeddings"),
        (CONFIG, config, "n_positions"),
    ):
        value = document.get(key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_TOKEN:
                raise _wrong(name, key, value, "a number of tokens")
            return value
    return None


def _sampling(documents: Mapping[str, Document]) -> Sampling:
    """Return the sampling that the files ask for.

    As in transformers and GenAI, the most likely token is taken unless a file says `do_sample`, whatever else it names:
    so a prompt has the answer here that it has with the tools of the model's authors. What GenAI's file says goes first, as
    it was written for this ONNX model.
    """
    said: dict[str, tuple[str, Any]] = {}
    search = _object(GENAI_CONFIG, documents.get(GENAI_CONFIG, {}), "search")
    for name, document in ((GENERATION_CONFIG, documents.get(GENERATION_CONFIG, {})), (GENAI_CONFIG, search)):
        for key in ("do_sample", *OPTIONS):
            if document.get(key) is not None:
                said[key] = (name, document[key])
    name, samples = said.pop("do_sample", ("", False))
    if not isinstance(samples, bool):
        raise _wrong(name, "do_sample", samples, "true or false")
    for key, (name, value) in said.items():
        low, high = BOUNDS[key]
        try:
            check_sampling(Sampling(**{key: value}))
        except RequestError:
            raise _wrong(name, key, value, f"a number from {low} to {high}") from None
    options = {"top_k": USUAL_TOP_K} | {key: value for key, (_, value) in said.items()}
    if samples:
        return Sampling(**options)
    return Sampling(temperature=0.0, repetition_penalty=options.get("repetition_penalty", 1.0))
