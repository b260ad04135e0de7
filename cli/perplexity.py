"""`rwkv-gpu perplexity`: the perplexity of a text."""

import json
from typing import Any

import click

from .bars import text_bar
from .load_model import load_model
from .model_name import FileName
from .options import loading_options, model_arguments, shared
from .page import Page
from .printing import print_text
from .screen import Screen
from .texts import read_text


@click.command("perplexity", cls=Page, epilog="Example: rwkv-gpu perplexity model.gguf book.txt --window 1024")
@model_arguments("FILE", instead=["path"])
@click.option("-f", "--file", "path", type=FileName(), envvar="RWKV_GPU_PERPLEXITY_FILE", help="The same as FILE.")
@click.option(
    "--window", type=click.IntRange(2), metavar="N",
    help="Longest context per token. A longer text is evaluated in windows that overlap by half.",
)  # fmt: skip
@click.option("--tokens", "limit", type=click.IntRange(2), metavar="N", help="Evaluate only the first N tokens.")
@shared("as_json")
@loading_options
def command(
    model: str, arguments: tuple[str, ...], path: str | None, window: int | None, limit: int | None,
    loading: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Compute the perplexity of the text in FILE; - is standard input.

    Perplexity is exp of the mean negative log likelihood of the tokens: the lower, the better the model predicts them.
    """
    text = read_text(arguments[0] if path is None else path)
    screen = Screen()
    with load_model(model, screen, **loading) as llm, text_bar(screen) as bar:
        part = text if limit is None else llm.tokenizer.cut(text, limit + 1)
        ids = llm.tokenize(part, special=True)[:limit]
        value = llm.perplexity(ids, window=window, progress=bar.update)
    if as_json:
        click.echo(json.dumps({"perplexity": value, "tokens": len(ids)}))
    else:
        click.echo(f"{value:.4f}")
        print_text(f"{len(ids):,} tokens", err=True)
