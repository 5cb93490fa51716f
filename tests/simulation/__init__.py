"""Whole clusters in one process and in virtual time: the real rules, a seeded network, and every fault that one can have.

`python -m tests.simulation --seed N --trace` replays one; docs/architecture.md says what must hold.
"""
