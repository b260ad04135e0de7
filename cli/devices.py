"""`rwkv-gpu devices`: the devices of this machine, and which one is used."""

import json

import click

from rwkv_gpu.errors import NoMatrixUnits
from rwkv_gpu.gpu.adapters import Adapter, Choice, choose, list_adapters
from rwkv_gpu.gpu.matrix_units import fragment_of
from rwkv_gpu.ops.open_device import state_of_matrix_units

from .folders import tuned_folder
from .options import shared
from .page import Page


@click.command("devices", cls=Page, epilog="Example: rwkv-gpu devices --device 0 --json")
@shared("as_json", "device")
def command(device: str, as_json: bool) -> None:
    """List the devices, and say which one --device chooses and why."""
    adapters = list_adapters()
    choice = choose(adapters, device)
    if as_json:
        click.echo(json.dumps(_as_data(adapters, choice), indent=2))
        return
    for adapter in adapters:
        mark = "*" if choice.adapter == adapter else " "
        click.echo(f"{mark} {adapter.index:3}  {adapter.name}")
        click.echo(f"        {adapter.backend}, {adapter.kind}, {adapter.driver or 'unknown driver'}")
        click.echo(f"        {matrix_units_of(adapter)}")
        click.echo(
            f"        {', '.join(adapter.abilities) or 'no features'}; bindings up to {adapter.max_binding >> 20} MiB"
        )
    click.echo(f"{' ' if choice.adapter else '*'} cpu  numpy, no GPU")
    click.echo(f"\n--device {device} chooses {choice.adapter or 'cpu'}: {choice.reason}")


def matrix_units_of(adapter: Adapter) -> str:
    """Describes whether an adapter has matrix units, and whether `auto` uses them, or why not."""
    try:
        side = fragment_of(adapter)
    except NoMatrixUnits as error:
        return str(error).replace(f" on {adapter}", "")
    return f"matrix units {side}x{side}, {state_of_matrix_units(adapter, tuned_folder())}"


def _as_data(adapters: list[Adapter], choice: Choice) -> dict[str, object]:
    names = ("index", "name", "backend", "kind", "driver", "abilities", "max_binding")
    rows = [{**{name: getattr(one, name) for name in names}, "matrix_units": matrix_units_of(one)} for one in adapters]
    return {"adapters": rows, "chosen": choice.adapter.index if choice.adapter else "cpu", "reason": choice.reason}
