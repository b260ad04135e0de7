"""`rwkv-gpu perplexity`: how well a model foresees a text."""

import json
from typing import Any

import click

from .load_model import load_model
from .options import FileName, json_option, model_argument, opening_options
from .screen import Screen
from .texts import read_text


@click.command("perplexity", epilog="Example: rwkv-gpu perplexity model.gguf book.txt --window 1024")
@model_argument
@click.argument("file", metavar="FILE", type=FileName())
@click.option(
    "--window", type=click.IntRange(2), help="Tokens to look back on at most: what is longer goes through windows."
)
@opening_options
@json_option
def command(model: str, file: str, window: int | None, opening: dict[str, Any], as_json: bool) -> None:
    """Compute the perplexity of FILE, a text (- is standard input): exp of the mean of -log p over its tokens."""
    text = read_text(file)
    with load_model(model, Screen(), **opening) as llm:
        tokens = len(llm.tokenize(text, special=True))
        value = llm.perplexity(text, window=window)
    if as_json:
        click.echo(json.dumps({"perplexity": value, "tokens": tokens}))
    else:
        click.echo(f"{value:.4f}")
        click.echo(f"of {tokens:,} tokens", err=True)
