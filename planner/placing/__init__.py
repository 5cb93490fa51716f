"""Placing: whole operators on devices (inter-operator parallelism), decided on a costed graph alone.

A `Workload` (workload.py) comes from a file (read.py) or from a model on a cluster; a placer (registry.py) finds a
machine for each of its tasks; dispatch.py says when everything then happens, load.py how busy everybody is; checker.py
holds a schedule against the rules without any of these. Rules only.
"""
