"""`rwkv-gpu completion`: the completion script for a shell."""

import click
from click.shell_completion import get_completion_class

from .page import Page


@click.command("completion", cls=Page, epilog='Example: eval "$(rwkv-gpu completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL, to be evaluated in its startup file, such as ~/.bashrc."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "rwkv-gpu", "_RWKV_GPU_COMPLETE").source())
