"""Text generation with language models: what clients ask of them, and what they are told."""

__all__ = ["generation"]
