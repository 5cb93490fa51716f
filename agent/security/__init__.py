"""Identity, certificates, the charter of who is out, tokens, and the CA's key.

May import: agent/storage, agent/wire, planner/errors, planner/json_text.
"""

__all__ = [
    "ca_key_file",
    "certificates",
    "charter",
    "charter_file",
    "ciphers",
    "identity",
    "issued",
    "tokens",
]
