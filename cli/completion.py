"""`rwkv-gpu completion`: what a shell needs to complete commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command("completion", epilog='Example: eval "$(rwkv-gpu completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script for a SHELL: eval it where the shell starts, such as in ~/.bashrc."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "rwkv-gpu", "_RWKV_GPU_COMPLETE").source())
