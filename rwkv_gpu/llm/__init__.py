"""Text in, text out: a model, its tokenizer and an engine behind one object."""

from .chat import Chat
from .completion import Completion, Event, Settings, Stats
from .generation import AsyncGeneration, Generation
from .hub import Hub
from .info import Info
from .model import LLM, load

__all__ = [
    "LLM", "AsyncGeneration", "Chat", "Completion", "Event", "Generation", "Hub", "Info", "Settings", "Stats",
    "load",
]  # fmt: skip
