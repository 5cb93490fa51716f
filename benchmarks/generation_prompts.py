"""Prompts for trials of text generation: questions of a chat, and texts to continue. Facts."""

from __future__ import annotations

QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a robot and a cat.",
    "Explain why the sky is blue.",
    "List the planets of the solar system.",
    "How do I boil an egg?",
    "What is a Raspberry Pi good for?",
    "Write a Python function that adds two numbers.",
    "Who wrote Romeo and Juliet?",
    "Give me three tips for sleeping well.",
    "What is the difference between a lake and a sea?",
)
TEXTS = (
    "The Raspberry Pi is a series of small single-board computers developed in",
    "Once upon a time, in a village between two mountains, there lived",
    "The first law of thermodynamics says that",
    "To make a good tomato sauce, begin with",
    "In 1969 three astronauts left the Earth, and",
    "def fibonacci(n):\n    ",
    "Dear Mr. Miller,\n\nthank you for your letter of",
    "The most important rivers of Europe are the Danube,",
    "A network of computers needs",
    "Bees are important because",
)
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_prompt(question: str) -> str:
    """Return a question as SmolLM2's chat template writes it.

    >>> chat_prompt("Who?").endswith("<|im_start|>assistant\\n")
    True
    """
    said = (("system", SYSTEM), ("user", question))
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
    return f"{turns}<|im_start|>assistant\n"


def prompts(count: int) -> list[str]:
    """Return so many prompts, of both kinds in turn."""
    every = [text for pair in zip(map(chat_prompt, QUESTIONS), TEXTS, strict=True) for text in pair]
    return (every * (count // len(every) + 1))[:count]
