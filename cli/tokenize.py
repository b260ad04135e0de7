"""`rwkv-gpu tokenize`: what a model's tokenizer makes of a text."""

import json

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.tokenizer import load_tokenizer

from .options import FileName, json_option, model_argument
from .texts import given_text


@click.command("tokenize", epilog='Example: rwkv-gpu tokenize model.gguf "The sea" --ids')
@model_argument
@click.argument("text", required=False)
@click.option("-f", "--file", "path", type=FileName(), help="Read the text from a file.")
@click.option("--ids", "only_ids", is_flag=True, help="Print the ids alone, in one line.")
@click.option("--special", is_flag=True, help="Add the tokens that the file puts at the ends of a text.")
@click.option("--parse", is_flag=True, help="Read special tokens that stand in the text, such as <|im_start|>.")
@click.option("--decode", is_flag=True, help="The text is ids, apart by spaces or commas: print what they say.")
@json_option
def command(
    model: str,
    text: str | None,
    path: str | None,
    only_ids: bool,
    special: bool,
    parse: bool,
    decode: bool,
    as_json: bool,
) -> None:
    """Show the tokens of a text: each id, and the bytes it stands for. Without TEXT, standard input is read."""
    with GGUFFile.open(model) as file:
        tokenizer = load_tokenizer(file.metadata)
    said = given_text(text, path, "TEXT")
    if decode:
        click.echo(tokenizer.decode(_ids(said, tokenizer.vocab_size)))
        return
    ids = tokenizer.encode(said, special=special, parse=parse)
    if as_json:
        click.echo(json.dumps({"ids": ids, "count": len(ids)}))
    elif only_ids:
        click.echo(" ".join(map(str, ids)))
    else:
        for token in ids:
            click.echo(f"{token:7}  {_shown(tokenizer.piece(token, special=True))}")


def _shown(piece: bytes) -> str:
    """Quoted text, or bytes where it is no whole character."""
    try:
        return json.dumps(piece.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return repr(piece)


def _ids(text: str, size: int) -> list[int]:
    try:
        ids = [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise BadInput(f"--decode takes ids, apart by spaces or commas: {error}") from None
    for token in ids:
        if not 0 <= token < size:
            raise BadInput(f"token id {token} is not in the vocabulary of {size:,}")
    return ids
