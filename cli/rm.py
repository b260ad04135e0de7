"""`rwkv-gpu rm`: deletes models that were pulled."""

import click

from rwkv_gpu.measure.sizes import sized

from .folders import hub, store
from .model_name import catalogue_option
from .page import Page
from .printing import print_text


@click.command("rm", cls=Page, epilog="Example: rwkv-gpu rm some-author/a-model-GGUF:Q4_K_M")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@catalogue_option
def command(names: tuple[str, ...]) -> None:
    """Delete models by their names in `rwkv-gpu list`, with parts and projectors. Other files are never deleted."""
    for name in names:
        short = None if store().matching(name) else hub().names.hub_name(name)
        removed = store().remove(short or name)
        print_text(f"deleted {removed.name}: {sized(removed.nbytes)} are free", err=True)
