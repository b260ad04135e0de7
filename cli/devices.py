"""`rwkv-gpu devices`: the devices of this machine, and which one is used."""

import json

import click

from rwkv_gpu.errors import NoMatrixUnits
from rwkv_gpu.gpu.adapters import Adapter, Choice, choose, list_adapters
from rwkv_gpu.gpu.matrix_units import fragment_of
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.ops.open_device import state_of_matrix_units

from .options import shared
from .page import Page
from .printing import print_table, print_text


@click.command("devices", cls=Page, epilog="Example: rwkv-gpu devices --device 0 --json")
@shared("as_json", "device")
def command(device: str, as_json: bool) -> None:
    """List the devices, and say which one --device chooses and why."""
    adapters = list_adapters()
    choice = choose(adapters, device)
    if as_json:
        click.echo(json.dumps(_as_data(adapters, choice), indent=2))
        return
    rows = [_row(adapter, chosen=choice.adapter == adapter) for adapter in adapters]
    rows.append(("" if choice.adapter else "*", "cpu", "numpy, no GPU", "", "", "", "", ""))
    print_table(HEADS, rows, right=["index", "binding"])
    print_text(f"\n--device {device} chooses {choice.adapter or 'cpu'}: {choice.reason}")


HEADS = ("used", "index", "name", "kind", "driver", "matrix units", "features", "binding")


def _row(adapter: Adapter, *, chosen: bool) -> tuple[str, ...]:
    kind, driver = f"{adapter.kind}, {adapter.backend}", adapter.driver or "unknown"
    features, binding = ", ".join(adapter.abilities) or "none", f"{adapter.max_binding >> 20} MiB"
    units = matrix_units_of(adapter).removeprefix("no matrix units: ").removeprefix("matrix units ")
    return "*" if chosen else "", str(adapter.index), adapter.name, kind, driver, units, features, binding


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
