"""The command line. It talks to an agent's HTTP API, or calls the planner for offline planning."""
