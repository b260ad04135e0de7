"""`rwkv-gpu list`: the models that were pulled."""

import json

import click

from rwkv_gpu.measure.sizes import sized

from .folders import store
from .options import shared
from .page import Page
from .printing import print_table, print_text

NAMES = 200  # maximum cells of a name or path that is not split, so that it can be copied


@click.command("list", cls=Page, epilog="Example: rwkv-gpu list")
@shared("as_json")
def command(*, as_json: bool) -> None:
    """List the models that were pulled: name, size and file. Each name works in all commands in place of a file."""
    models = store().models()
    if as_json:
        rows = [
            {
                "name": one.name,
                "bytes": one.nbytes,
                "complete": one.complete,
                "files": [*map(str, one.paths)],
                "projectors": [*map(str, one.projectors)],
            }
            for one in models
        ]
        click.echo(json.dumps({"folder": str(store().folder), "models": rows}, indent=2))
        return
    where = [str(one.paths[0]) if one.complete else "incomplete: pull it again" for one in models]
    lines = [(one.name, sized(one.nbytes), path) for one, path in zip(models, where, strict=True)]
    if not models:
        print_text("no models; `rwkv-gpu pull NAME` downloads one, and `rwkv-gpu models` lists names", err=True)
        return
    print_table(("name", "size", "file"), lines, right=["size"], longest=NAMES)
