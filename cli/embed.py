"""`rwkv-gpu embed`: embeddings of texts."""

import json
from typing import Any

import click

from rwkv_gpu.errors import BadInput

from .bars import lines_bar
from .load_model import load_model
from .model_name import FileName
from .options import loading_options, model_arguments
from .page import Page
from .screen import Screen
from .texts import input_text, lines_of, read_text


@click.command("embed", cls=Page, epilog='Example: rwkv-gpu embed model.gguf "the sea" "the ocean"')
@model_arguments("[TEXT]...")
@click.option(
    "-f", "--file", "path", type=FileName(), envvar="RWKV_GPU_EMBED_FILE",
    help="Read the texts from a file, one per line; - is standard input.",
)  # fmt: skip
@loading_options
def command(model: str, arguments: tuple[str, ...], path: str | None, loading: dict[str, Any]) -> None:
    """Print the embedding of each TEXT as a line of JSON: the mean of its final hidden states, normalised.

    Without TEXT, each line of standard input is a text. The first argument is the model if it ends in .gguf, begins
    with hf.co/, is `builtin` or is a path that exists.
    """
    if arguments and path is not None:
        raise BadInput("give the texts as arguments or by --file, not both")
    texts = [input_text(text, None, "TEXT") for text in arguments] or lines_of(read_text(path or "-"))
    for number, text in enumerate(texts, 1):
        if not text:
            raise BadInput(f"text {number} is empty; it has no embedding")
    screen = Screen()
    with load_model(model, screen, **loading) as llm, lines_bar(screen) as bar:
        for number, text in enumerate(texts, 1):
            click.echo(json.dumps([round(float(x), 7) for x in llm.embed(text)]))
            bar.update(number, len(texts), "embedded")
