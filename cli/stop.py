"""`rwkv-gpu stop`: stops a server of this user."""

import click

from .page import Page
from .printing import print_text
from .servers import chosen
from .servers import stop as stop_server


@click.command("stop", cls=Page, epilog="Example: rwkv-gpu stop 8080; rwkv-gpu stop qwen3.5:4b")
@click.argument("name", metavar="[PORT|MODEL]", required=False)
def command(name: str | None) -> None:
    """Stop a server of `rwkv-gpu ps`: the one with this port or model, or the only one.

    Running requests may finish, as after the first Ctrl-C in the server. The same command again ends them at
    once.
    """
    server, path = chosen(name)
    stop_server(server, path)
    print_text(f"stopped {server.url}", err=True)
