"""`rwkv-gpu embed`: embeddings of texts."""

import json
from typing import Any

import click

from rwkv_gpu.errors import BadInput

from .bars import lines_bar
from .load_model import load_model
from .model_name import FileName
from .options import loading_options, model_arguments, shared
from .page import Page
from .screen import Screen
from .texts import input_text, lines_of, read_text

TOGETHER = 64  # texts per update of the progress bar; texts that fit in one step share it


@click.command("embed", cls=Page, epilog='Example: rwkv-gpu embed model.gguf "the sea" "the ocean"')
@model_arguments("[TEXT]...", instead=["prompt", "path"])
@click.option("-p", "--prompt", help="The same as TEXT.")
@click.option(
    "-f", "--file", "path", type=FileName(), envvar="RWKV_GPU_EMBED_FILE",
    help="Read the texts from a file, one per line; - is standard input.",
)  # fmt: skip
@click.option(
    "--dimensions", type=click.IntRange(min=1), metavar="N",
    help="Keep only the first N numbers of each embedding, scaled to length one, for models trained for this.",
)  # fmt: skip
@shared("as_json")
@loading_options
def command(
    model: str, arguments: tuple[str, ...], prompt: str | None, path: str | None, dimensions: int | None,
    as_json: bool, loading: dict[str, Any],
) -> None:  # fmt: skip
    """Print the embedding of each TEXT as a line of JSON: a vector of length one.

    It is the mean of the final hidden states of its tokens, or the state of its first or last token if the model
    file says so, as for embedding models.

    --json prints one object, as the embeddings API of OpenAI returns it.

    Without TEXT, each line of standard input is a text. The first argument is the model if it ends in .gguf, begins
    with hf.co/, is `builtin` or is a path that exists.
    """
    if prompt is not None:
        arguments = (prompt,)
    if arguments and path is not None:
        raise BadInput("give the texts as arguments or by --file, not both")
    texts = [input_text(text, None, "TEXT") for text in arguments] or lines_of(read_text(path or "-"))
    if not texts:
        raise BadInput(f"{'standard input' if path in (None, '-') else path} is empty; give a text on each line")
    for number, text in enumerate(texts, 1):
        if not text:
            raise BadInput(f"text {number} is empty; it has no embedding")
    screen = Screen()
    rows, tokens = [], 0
    with load_model(model, screen, **loading) as llm, lines_bar(screen, prints=not as_json) as bar:
        for start in range(0, len(texts), TOGETHER):
            reply = llm.create_embedding(texts[start : start + TOGETHER], dimensions=dimensions)
            vectors = [[round(x, 7) for x in row["embedding"]] for row in reply["data"]]
            if not as_json:
                click.echo("".join(json.dumps(vector) + "\n" for vector in vectors), nl=False)
            rows += vectors if as_json else []
            tokens += reply["usage"]["prompt_tokens"]
            bar.update(min(start + TOGETHER, len(texts)), len(texts), "embedded")
    if as_json:
        data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        click.echo(json.dumps({"object": "list", "data": data, "model": reply["model"], "usage": usage}))
