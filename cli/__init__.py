"""The command line: what a person types. It talks to an agent's HTTP API, or calls the planner for offline planning."""
