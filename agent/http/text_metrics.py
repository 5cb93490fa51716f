"""Text metrics: counts and times of generated texts, in the registry of metrics.py. They exist only where text is
served."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgepart.agent.gateway.metrics import Metrics
from edgepart.agent.text.generation import Ended

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class TextMetrics:
    """The metrics of the texts that one agent generates for its clients. Call its methods for existing deployments only:
    names that clients make up must not become labels."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        """Add them to the agent's metrics."""
        self._history = metrics.history
        self._clock = clock
        self._answers = metrics.count(
            "text_answers", "Texts by how they ended: stop, length, cancelled, or a kind of error", "outcome"
        )
        self._prompt_tokens = metrics.count("text_prompt_tokens", "Tokens of prompts")
        self._cached_tokens = metrics.count(
            "text_cached_tokens", "Tokens of prompts that did not have to be read again"
        )
        self._generated_tokens = metrics.count("text_generated_tokens", "Tokens that were generated")
        self._replays = metrics.count("text_replays", "How often tokens were read again after a loss")
        self._first_token_s = metrics.time(
            "text_first_token_seconds", "From the request to its first token", _FIRST_TOKEN_S
        )
        self._token_s = metrics.time(
            "text_token_seconds", "Average time between the tokens of a text", _TOKEN_S
        )

    def ended(self, model: str, ended: Ended) -> None:
        self._answers.labels(model, ended.reason).inc()
        self._prompt_tokens.labels(model).inc(ended.prompt_tokens)
        self._cached_tokens.labels(model).inc(ended.cached_tokens)
        self._generated_tokens.labels(model).inc(ended.generated_tokens)
        self._replays.labels(model).inc(ended.replays)
        seconds = ended.first_token_s
        if ended.tokens_per_s > 0:
            seconds += (ended.generated_tokens - 1) / ended.tokens_per_s
        self._history.answered(model, self._clock(), seconds, replays=ended.replays)
        self._history.grown(model, self._clock(), ended.generated_tokens)
        if ended.generated_tokens:
            self._first_token_s.labels(model).observe(ended.first_token_s)
        if ended.tokens_per_s > 0:
            self._token_s.labels(model).observe(1 / ended.tokens_per_s)

    def broken_off(self, model: str, outcome: str) -> None:
        """Count a text that did not come to its end: "cancelled" by its client, or the name of the error's class."""
        self._answers.labels(model, outcome).inc()
        if outcome != "cancelled":
            self._history.failed(model, self._clock(), outcome)
