"""Sentences: writes a plan's reasons, one sentence per line, the most important one first. Pure."""

from __future__ import annotations


def as_sentence(phrase: str) -> str:
    """The phrase with a capital letter, and a full stop unless it is a question; "" stays "".

    >>> as_sentence("moving data takes 20%"), as_sentence("use auto?")
    ('Moving data takes 20%.', 'Use auto?')
    """
    text = phrase.rstrip(".")
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('?') else '.'}" if text else ""


def as_lines(*phrases: str) -> str:
    """The phrases that are not empty, as sentences on separate lines."""
    return "\n".join(map(as_sentence, filter(None, phrases)))


def phrases(reasons: str) -> list[str]:
    """The phrases of a strategy's reasons, which semicolons separate outside parentheses.

    >>> phrases("split along height (2 layers; 3 devices); borders are sent first")
    ['split along height (2 layers; 3 devices)', 'borders are sent first']
    """
    found, depth = [""], 0
    for piece in reasons.split("; "):
        found[-1] += f"; {piece}" if depth > 0 else ""
        if depth <= 0:
            found.append(piece)
        depth += piece.count("(") - piece.count(")")
    return found[1:]


def headline(why: str) -> str:
    """The first line of a plan's reasons.

    >>> headline("Bottleneck: computing on pi-b (80%).\\nMoving data takes 20%.")
    'Bottleneck: computing on pi-b (80%).'
    """
    return why.partition("\n")[0]
