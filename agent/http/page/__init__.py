"""The page of every agent: its files, the documents that it shows, and the streams that keep it up to date.

May import: agent/api, agent/chronicle, agent/gateway, agent/http, agent/trace, planner/errors, planner/figures,
planner/plans, planner/report.
"""

__all__ = ["page_documents", "request_timeline", "routes"]
