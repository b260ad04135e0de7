"""`rwkv-gpu pull`: downloads a model by its name, for all commands."""

import click

from rwkv_gpu.llm.hub import MAX_CONNECTIONS

from .echo import echo_text
from .folders import hub, pull
from .model_name import ModelName, catalogue_option
from .options import size
from .page import Page


@click.command("pull", cls=Page, epilog="Example: rwkv-gpu pull qwen3.5:4b; rwkv-gpu pull hf.co/OWNER/NAME:Q4_K_M")
@click.argument("name", metavar="NAME|hf.co/OWNER/NAME[:QUANTISATION]", type=ModelName())
@click.option("--revision", default="main", show_default=True, metavar="NAME", help="Branch, tag or commit.")
@click.option(
    "--connections",
    type=click.IntRange(1, MAX_CONNECTIONS),
    default=1,
    show_default=True,
    metavar="N",
    help="Connections over which a file is downloaded at the same time.",
)
@click.option("--limit-rate", "rate", type=size, metavar="SIZE", help="Maximum bytes per second, such as 500K or 2.5M.")
@click.option("--no-mmproj", is_flag=True, help="Leave out the projector for images or audio.")
@catalogue_option
def command(name: str, revision: str, connections: int, rate: int | None, *, no_mmproj: bool) -> None:
    """Download a model into the folder of models, and print its path. Then its name works in all commands.

    A projector (mmproj-*.gguf) for images or audio that the repository has for the model comes with it.

    NAME is a name of `rwkv-gpu models`, such as qwen3.5:4b, or that of a repository. An interrupted download continues
    where it stopped, and checksums are verified. Set HF_TOKEN for gated and private models, HF_ENDPOINT for another
    hub. `rwkv-gpu list` lists the models, `rwkv-gpu rm` deletes them.
    """
    echo_text(
        pull(hub().full_name(name), revision=revision, connections=connections, rate=rate, projectors=not no_mmproj)
    )
