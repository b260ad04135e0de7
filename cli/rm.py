"""`rwkv-gpu rm`: deletes models that were pulled."""

import click

from .folders import store
from .page import Page
from .sizes import sized


@click.command("rm", cls=Page, epilog="Example: rwkv-gpu rm some-author/a-model-GGUF:Q4_K_M")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def command(names: tuple[str, ...]) -> None:
    """Delete models by their names in `rwkv-gpu list`, with all their parts. Other files are never deleted."""
    for name in names:
        removed = store().remove(name)
        click.echo(f"deleted {removed.name}: {sized(removed.nbytes)} are free", err=True)
