"""`rwkv-gpu devices`: what there is to run on, and what would be chosen."""

import json

import click

from rwkv_gpu.gpu.adapters import Adapter, Choice, choose, list_adapters

from .options import device_option


@click.command("devices", epilog="Example: rwkv-gpu devices --device 0 --json")
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(device: str, as_json: bool) -> None:
    """List the GPUs, and say which one would be chosen and why."""
    adapters = list_adapters()
    choice = choose(adapters, device)
    if as_json:
        click.echo(json.dumps(_as_data(adapters, choice), indent=2))
        return
    for adapter in adapters:
        mark = "*" if choice.adapter == adapter else " "
        click.echo(f"{mark} {adapter.index:3}  {adapter.name}")
        click.echo(f"        {adapter.backend}, {adapter.kind}, {adapter.driver or 'driver unnamed'}")
        click.echo(
            f"        {', '.join(adapter.abilities) or 'no features'}; bindings up to {adapter.max_binding >> 20} MiB"
        )
    click.echo(f"{' ' if choice.adapter else '*'} cpu  numpy, no GPU")
    click.echo(f"\n--device {device} takes {choice.adapter or 'cpu'}: {choice.reason}")


def _as_data(adapters: list[Adapter], choice: Choice) -> dict[str, object]:
    return {
        "adapters": [
            {
                "index": a.index,
                "name": a.name,
                "backend": a.backend,
                "kind": a.kind,
                "driver": a.driver,
                "abilities": list(a.abilities),
                "max_binding": a.max_binding,
            }
            for a in adapters
        ],
        "chosen": choice.adapter.index if choice.adapter else "cpu",
        "reason": choice.reason,
    }
