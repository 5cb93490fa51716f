"""A cluster described in a file: read, compared with what is deployed, and applied; and the file for what is deployed.

May import: agent/api, agent/options, agent/wire, cli/deploying, cli/deployment, cli/options, cli/output, cli/query,
cli/sources, client, planner/errors, planner/vocabulary.
"""

__all__ = ["commands"]
