"""What language models need beside tensors: tokens for text, prompts for chats, the choice of the next token, and text for
tokens.

May import: agent/host, planner/errors, planner/json_text.
"""

__all__: list[str] = []
