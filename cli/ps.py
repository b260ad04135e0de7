"""`rwkv-gpu ps`: the servers of this user that run on this machine."""

import json
import time
from dataclasses import asdict

import click

from .options import shared
from .page import Page
from .printing import print_table, print_text
from .servers import running

ADDRESS = 40  # cells of the longest address that stays on a line, so that it can be copied
UNITS = ("day", 86400), ("hour", 3600), ("minute", 60)


@click.command("ps", cls=Page, epilog="Example: rwkv-gpu ps")
@shared("as_json")
def command(*, as_json: bool) -> None:
    """List the servers of this user that run on this machine: port, models, device and uptime.

    `rwkv-gpu stop PORT` stops one. Servers that were started with another cache folder are not listed.
    """
    servers = [server for server, _ in running()]
    if as_json:
        click.echo(json.dumps([asdict(server) for server in servers], indent=2))
        return
    if not servers:
        print_text("no server runs; `rwkv-gpu serve` starts one", err=True)
        return
    rows = [
        (str(one.port), ", ".join(one.models), one.device, duration(time.time() - one.started), str(one.pid), one.url)
        for one in servers
    ]
    heads = "port", "models", "device", "for", "process", "address"
    print_table(heads, rows, right=["port", "process"], longest=ADDRESS)


def duration(seconds: float) -> str:
    """A duration in its largest unit: 3 hours"""
    for unit, size in UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{max(0, int(seconds))} s"
