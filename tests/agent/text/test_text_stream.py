"""The text of a stream is the decoding of all its tokens, up to the first stop text, whatever the tokens are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgepart.agent.text.text_stream import MOST_STOPS, TextStream, check_stop
from edgepart.planner.errors import RequestError

PIECES = [
    *(bytes((n,)) for n in range(256)), b"", b"ab", b" a", b"STOP", b"ST", b"OP", b"\n\n", "é".encode(), "é€".encode(),
    "€".encode()[:2], "€".encode()[2:] + b"x", "😀".encode()[:3], "😀".encode()[3:] + "😀".encode()[:1], b"\xff\xfe",
]  # fmt: skip


def decode(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode(errors="replace")


def cut(text: str, stop: Sequence[str]) -> str:
    """The definition: up to where the stop text begins that is complete first, the longest one of those."""
    for end in range(len(text) + 1):
        begins = [end - len(one) for one in stop if text[:end].endswith(one)]
        if begins:
            return text[: min(begins)]
    return text


token_lists = st.lists(
    st.one_of(
        st.integers(0, len(PIECES) - 1),
        st.integers(256, len(PIECES) - 1),
        st.sampled_from(list("aé€😀STOP ".encode())),
    ),
    max_size=80,
)
stops = st.lists(
    st.one_of(
        st.sampled_from(["STOP", "ST", "TO", "aa", "aab", "\n\n", "é", "€a", "\ufffd", "\ufffda", " "]),
        st.text(min_size=1, max_size=3),
    ),
    max_size=3,
)


@given(token_lists, stops)
@example([256] * 50 + [269] + [256] * 40 + [0xAC], [])
@example([0xFF] * 100 + list(b"STOP"), ["STOP"])
@example(list(b"xaab"), ["aa", "xaac", "aab"])
def test_what_is_told_is_the_whole_up_to_the_first_stop(tokens: list[int], stop: list[str]) -> None:
    stream, told = TextStream(decode, stop), ""
    whole = decode(tokens)
    for token in tokens:
        told += stream.push(token)
        assert cut(whole, stop).startswith(told)  # what is told is never taken back
    told += stream.finish()
    assert told == cut(whole, stop)
    assert stream.stopped is (told != whole or any(one in whole for one in stop))


@given(st.lists(st.sampled_from("aé€😀 "), max_size=60))
def test_whole_characters_are_told_at_once(letters: list[str]) -> None:
    stream = TextStream(decode)
    for letter in letters:
        *parts, last = letter.encode()
        assert [stream.push(token) for token in parts] == [""] * len(parts)
        assert stream.push(last) == letter
    assert stream.finish() == ""


@pytest.mark.parametrize(
    ("stop", "pushed", "told", "stopped"),
    [
        (["STOP"], ["a", "ST", "OP", "b"], ["a", "", "", ""], True),
        (["STOP"], ["a", "ST", "b"], ["a", "", "STb"], False),
        (["STOP"], ["aSTOPb"], ["a"], True),
        (["\n\n"], ["x\n", "y", "\n\n"], ["x", "\ny", ""], True),
        (["aab"], ["aa", "a", "b"], ["", "a", ""], True),
        (["ab", "b"], ["a", "b"], ["", ""], True),
        (["xabc", "ab"], ["xabc"], ["x"], True),
        (["xabc", "ab"], ["xa", "b"], ["", "x"], True),
        ([], ["STOP"], ["STOP"], False),
    ],
)
def test_stop_texts_over_borders_of_tokens(
    stop: list[str], pushed: list[str], told: list[str], stopped: bool
) -> None:
    pieces: list[str] = []

    def decode(tokens: Sequence[int]) -> str:
        return "".join(pieces[token] for token in tokens)

    stream = TextStream(decode, stop)
    for number, (piece, text) in enumerate(zip(pushed, told, strict=True)):
        pieces.append(piece)
        assert stream.push(number) == text
    assert stream.stopped is stopped
    assert stream.finish() == ""


def test_the_rest_comes_with_the_end() -> None:
    stream = TextStream(decode, ["STOP"])
    assert [stream.push(token) for token in b"x ST"] == ["x", " ", "", ""]
    assert stream.push(0xC3) == ""
    assert stream.finish() == "ST\ufffd"
    assert stream.finish() == ""


def test_a_first_space_that_decoders_leave_out_stays_in_the_middle() -> None:
    """Decoders of sentencepiece drop the space of the first token that they are given."""
    words = [" Hello", " big", " world", "!", ""]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).removeprefix(" ")

    stream = TextStream(decode)
    assert [stream.push(n) for n in (0, 4, 1, 4, 4, 2, 3)] == ["Hello", "", " big", "", "", " world", "!"]


def test_bytes_that_a_decoder_joins_only_when_they_are_whole() -> None:
    """Decoders with byte fallback make a broken character of each byte of a run that is not whole."""

    def decode(tokens: Sequence[int]) -> str:
        data = bytes(tokens)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(data)

    stream = TextStream(decode)
    assert [stream.push(byte) for byte in "€€😀".encode()] == ["", "", "€", "", "", "€", "", "", "", "😀"]


@pytest.mark.parametrize("piece", [b"a", b"\xff", b"\xe2", b""])
def test_the_work_grows_with_the_tokens_only(piece: bytes) -> None:
    """Counts decoded tokens, of a stream ten times as long, for text, for bytes that never become text, and for tokens
    without text."""
    work = {}
    for length in (1000, 10_000):
        decoded = 0

        def decode(tokens: Sequence[int]) -> str:
            nonlocal decoded
            decoded += len(tokens)
            return (piece * len(tokens)).decode(errors="replace")

        stream = TextStream(decode)
        told = "".join(stream.push(0) for _ in range(length)) + stream.finish()
        assert told == (piece * length).decode(errors="replace")
        work[length] = decoded
    assert work[10_000] < 15 * work[1000]


def test_stop_texts_have_bounds() -> None:
    check_stop(["x" * 1000] * MOST_STOPS)
    for bad in ([""], ["a", ""], ["x" * 1001], ["x"] * (MOST_STOPS + 1)):
        with pytest.raises(RequestError, match=r"stop text.* nothing was generated"):
            TextStream(decode, bad)
