"""The agent as a service of systemd: `edgepart service install`, `status` and `uninstall`.

May import: agent/net, agent/options, agent/security, agent/wire, cli/agent_command, cli/config, cli/options,
cli/output, cli/query, client, planner/errors.
"""

__all__ = ["commands"]
