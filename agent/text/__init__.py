"""What language models need beside tensors: tokens for text, prompts for chats, the choice of the next token, and text for
tokens.

May import: agent/host, agent/serving, agent/verify, agent/wire, planner/errors, planner/json_text, planner/model,
planner/plans, planner/region.
"""

__all__ = [
    "chat_template",
    "companions",
    "decoder",
    "generation",
    "sample_text",
    "text_generator",
    "token_sequences",
    "tokenizer",
]
