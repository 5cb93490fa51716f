"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A case takes as long as the machine lets it: no test is about time (benchmarks/ is).
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
