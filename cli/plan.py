"""`rwkv-gpu plan`: shows the dispatches of a step, the reason for each, and what each fusion saves."""

import json
from collections.abc import Sequence

import click

from rwkv_gpu.engine.adapters import adapters_of
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Capabilities
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuned import find as find_tuned
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.measure.plans import DispatchRow, PassRow, RecordedStep, Step, record_step, shader_of
from rwkv_gpu.measure.sizes import sized
from rwkv_gpu.ops.kv_format import KVType
from rwkv_gpu.ops.open_device import open_device
from rwkv_gpu.ops.passes import NAMES
from rwkv_gpu.ops.self_test import tuning_for
from rwkv_gpu.ops.vocabulary import StateType

from .bench import opened
from .echo import echo_text
from .model_name import ModelName, naming_options
from .options import shared
from .page import Page
from .printing import print_table


@click.command("plan", cls=Page, epilog="Example: rwkv-gpu plan --synthetic rwkv7-2.9b-q4_k_m --rows 1 --limits h200")
@click.argument("model", metavar="[MODEL.gguf]", type=ModelName(), required=False)
@naming_options
@shared("synthetic")
@click.option(
    "--rows", type=click.IntRange(1, 1 << 16), default=1, show_default=True, metavar="N", help="Rows of the step."
)
@click.option(
    "--prefill", is_flag=True, help="All rows belong to one sequence. Default: each row is a separate sequence."
)
@click.option("--without", multiple=True, metavar="PASS", help="Leave out a pass, by its name; can be repeated.")
@click.option("--limits", type=click.Choice(list(LIMITS)), help="Plan for these capabilities; needs no GPU.")
@click.option("--graph", is_flag=True, help="Print the graph after all passes instead of the dispatches.")
@click.option("--shader", type=int, metavar="N", help="Print the WGSL of dispatch N and where it was written.")
@shared("lora", "kv", "states", "context", "device", "as_json")
def command(
    model: str | None, synthetic: str | None, rows: int, prefill: bool, without: tuple[str, ...], limits: str | None,
    graph: bool, shader: int | None, lora: Sequence[tuple[str, float]], kv: KVType, states: StateType,
    context: int | None, device: str, as_json: bool,
) -> None:  # fmt: skip
    """Show the dispatches of a step of MODEL, a synthetic model or the built-in model. Nothing is loaded or run.

    Below each dispatch is its op, with what passes have fused into it, and what it binds. The second table says how
    often each pass fired, and how many more dispatches the step would have without it.
    """
    unknown = sorted(set(without) - set(NAMES))
    if unknown:
        raise BadInput(f"there is no pass '{unknown[0]}'; known: {', '.join(NAMES)}")
    with opened(ModelName.file(model), synthetic) as file:
        can, tuning = _target(device, limits)
        recorded = file, can, tuning, Step(rows, prefill, kv, context, states), without, adapters_of(lora, file)
        if shader is not None:
            echo_text(shader_of(*recorded, number=shader), nl=False)
            return
        step = record_step(*recorded)
    if as_json:
        click.echo(json.dumps(step.as_data(), indent=2))
    elif graph:
        echo_text(step.graph, nl=False)
    else:
        _show(step)


def _target(device: str, limits: str | None) -> tuple[Capabilities, Tuning]:
    """Named capabilities with their default tuning, or those of a device with its tuning results."""
    if limits is not None:
        return LIMITS[limits], default_tuning(LIMITS[limits])
    adapter = find(device).adapter
    if adapter is None:
        raise BadInput(f"numpy has no dispatches; choose a GPU with --device, or --limits {'|'.join(LIMITS)}")
    with open_device(adapter, folder=tuned_folder()) as opened_device:
        can = opened_device.capabilities
        return can, tuning_for(opened_device, find_tuned(adapter, can, tuned_folder()))


HEADS = ("number", "kernel", "layer", "workgroups", "bytes")
PASS_HEADS = ("pass", "fired", "dispatches saved", "bytes saved", "what it does")


def _show(step: RecordedStep) -> None:
    """A table of the dispatches, each with its op and bindings below it, and one of the passes."""
    rows = [(str(number), *_cells(row)) for number, row in enumerate(step.dispatches)]
    bound = [" ".join(f"{name}={value}" for name, value in row.bindings.items()) for row in step.dispatches]
    notes = [f"{row.op}: {names}" for row, names in zip(step.dispatches, bound, strict=True)]
    print_table(HEADS, rows, right=["number", "workgroups", "bytes"], notes=notes)
    click.echo(f"{len(step.dispatches)} dispatches, {sized(step.nbytes)}\n")
    print_table(PASS_HEADS, [*map(_pass_cells, step.passes)], right=PASS_HEADS[1:4])


def _cells(row: DispatchRow) -> tuple[str, ...]:
    layer = "" if row.layer is None else f"blk.{row.layer}"
    return row.name, layer, f"{row.workgroups:,}", sized(row.nbytes)


def _pass_cells(row: PassRow) -> tuple[str, ...]:
    fired = "left out" if row.left_out else str(row.fired)
    saved = (str(row.dispatches), f"{row.nbytes:,}") if row.fired else ("", "")
    return row.name, fired, *saved, row.about
