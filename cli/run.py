"""`rwkv-gpu run`: the chat, by the name that ollama gives it."""

from .chat import command as chat
from .page import Page

command = Page(
    "run",
    params=chat.params,
    callback=chat.callback,
    help=chat.help,
    epilog='Example: rwkv-gpu run model.gguf "What is the sea?"',
)
