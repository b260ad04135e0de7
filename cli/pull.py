"""`rwkv-gpu pull`: downloads a model by its name, for all commands."""

import click

from rwkv_gpu.llm.hub_names import is_hub_name

from .folders import pull
from .page import Page


@click.command("pull", cls=Page, epilog="Example: rwkv-gpu pull hf.co/some-author/a-model-GGUF:Q4_K_M")
@click.argument("name", metavar="hf.co/OWNER/NAME[:QUANTISATION]")
@click.option("--revision", default="main", show_default=True, metavar="NAME", help="Branch, tag or commit.")
def command(name: str, revision: str) -> None:
    """Download a model into the folder of models, and print its path. Then its name works in all commands.

    An interrupted download continues where it stopped, and checksums are verified. Set HF_TOKEN for gated and private
    models, HF_ENDPOINT for another hub. `rwkv-gpu list` lists the models, `rwkv-gpu rm` deletes them.
    """
    whole = f"hf.co/{name}"
    click.echo(pull(whole if is_hub_name(whole) and not is_hub_name(name) else name, revision))
