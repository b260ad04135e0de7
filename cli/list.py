"""`rwkv-gpu list`: the models that were pulled."""

import json

import click

from .folders import store
from .options import shared
from .page import Page
from .sizes import sized


@click.command("list", cls=Page, epilog="Example: rwkv-gpu list")
@shared("as_json")
def command(*, as_json: bool) -> None:
    """List the models that were pulled: name, size and file. Each name works in all commands in place of a file."""
    models = store().models()
    if as_json:
        rows = [
            {"name": one.name, "bytes": one.nbytes, "complete": one.complete, "files": [*map(str, one.paths)]}
            for one in models
        ]
        click.echo(json.dumps({"folder": str(store().folder), "models": rows}, indent=2))
        return
    width = max((len(one.name) for one in models), default=0)
    for one in models:
        where = one.paths[0] if one.complete else "incomplete: pull it again"
        click.echo(f"{one.name:{width}}  {sized(one.nbytes):>10}  {where}")
    if not models:
        click.echo("no models; `rwkv-gpu pull hf.co/OWNER/NAME:Q4_K_M` downloads one", err=True)
