"""`rwkv-gpu run`: the chat, under ollama's name for it."""

from .chat import command as chat
from .page import Page

command = Page(
    "run",
    params=chat.params,
    callback=chat.callback,
    help=f"{chat.help} After `run`, a first argument without a space is always a model.",
    epilog='Example: rwkv-gpu run model.gguf "What is the sea?"',
)
