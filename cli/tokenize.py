"""`rwkv-gpu tokenize`: the tokens of a text."""

import json

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.tokenizer import load_tokenizer

from .echo import echo_text
from .model_name import FileName
from .options import model_arguments, shared
from .page import Page
from .texts import input_text


@click.command("tokenize", cls=Page, epilog='Example: rwkv-gpu tokenize model.gguf "The sea" --ids')
@model_arguments("[TEXT]", instead=["prompt", "path"], file=True)
@click.option("-p", "--prompt", help="The same as TEXT.")
@click.option(
    "-f", "--file", "path", type=FileName(), envvar="RWKV_GPU_TOKENIZE_FILE", help="Read the text from a file."
)
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, on one line.")
@click.option("--special", is_flag=True, help="Add the BOS and EOS tokens that the model expects.")
@click.option("--parse", is_flag=True, help="Parse special tokens in the text, such as <|im_start|>.")
@click.option("--decode", is_flag=True, help="Print the text of ids, which are separated by spaces or commas.")
@shared("as_json")
def command(
    model: str, arguments: tuple[str, ...], prompt: str | None, path: str | None, only_ids: bool, special: bool,
    parse: bool, decode: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the tokens of TEXT: the id of each, and its text or bytes.

    Without TEXT, standard input is read. The first argument is the model if it ends in .gguf, begins with hf.co/, is
    `builtin` or is a path that exists.
    """
    with GGUFFile.open(model) as file:
        tokenizer = load_tokenizer(file.metadata)
    text = input_text(arguments[0] if arguments else prompt, path, "TEXT")
    if decode:
        echo_text(tokenizer.decode(_ids(text, tokenizer.vocab_size)))
        return
    ids = tokenizer.encode(text, special=special, parse=parse)
    if as_json:
        click.echo(json.dumps({"ids": ids, "count": len(ids)}))
    elif only_ids:
        click.echo(" ".join(map(str, ids)))
    else:
        for token in ids:
            echo_text(f"{token:7}  {_shown(tokenizer.piece(token, special=True))}")


def _shown(piece: bytes) -> str:
    """Quoted text, or bytes if it is not a whole character."""
    try:
        return json.dumps(piece.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return repr(piece)


def _ids(text: str, size: int) -> list[int]:
    try:
        ids = [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise BadInput(f"--decode takes ids, separated by spaces or commas: {error}") from None
    for token in ids:
        if not 0 <= token < size:
            raise BadInput(f"token id {token} is not in the vocabulary of {size:,}")
    return ids
