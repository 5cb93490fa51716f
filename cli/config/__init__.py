"""The options of `edgepart agent` in a file, such as /etc/edgepart/agent.toml.

May import: planner/errors.
"""

__all__ = ["config_file", "option_list"]
