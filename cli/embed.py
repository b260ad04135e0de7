"""`rwkv-gpu embed`: texts as vectors."""

import json
from typing import Any

import click

from rwkv_gpu.errors import BadInput

from .load_model import load_model
from .options import FileName, model_argument, opening_options
from .screen import Screen
from .texts import read_text


@click.command("embed", epilog='Example: rwkv-gpu embed model.gguf "the sea" "the ocean"')
@model_argument
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("-f", "--file", "path", type=FileName(), help="A file with a text in every line; - is standard input.")
@opening_options
def command(model: str, texts: tuple[str, ...], path: str | None, opening: dict[str, Any]) -> None:
    """Print each text's vector as a line of JSON: the mean of its final hidden states, of length one.

    Without TEXT, every line of standard input is one.
    """
    if texts and path is not None:
        raise BadInput("give the texts as arguments or by --file, not both")
    said = list(texts) or read_text(path or "-").splitlines()
    for number, text in enumerate(said, 1):
        if not text:
            raise BadInput(f"text {number} is empty; it has no vector")
    with load_model(model, Screen(), **opening) as llm:
        for text in said:
            click.echo(json.dumps([round(float(x), 7) for x in llm.embed(text)]))
