"""`rwkv-gpu fit`: will this model run on that device?"""

import json
import math
from dataclasses import asdict
from typing import Literal

import click

from rwkv_gpu.engine.cache.config import DEFAULT_SEQUENCES, CacheConfig, KVType, shared_tokens
from rwkv_gpu.engine.fit import Fit, fit
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Choice, find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.memory import host_available
from rwkv_gpu.gpu.tuned import find as find_tuned
from rwkv_gpu.llm.loading import DEFAULT_CHUNK
from rwkv_gpu.models.registry import load_model

from .folders import tuned_folder
from .options import chunk_option, context_option, device_option, json_option, kv_option, model_argument
from .sizes import sized


@click.command("fit", epilog="Example: rwkv-gpu fit model.gguf --device 0")
@model_argument
@device_option
@chunk_option
@context_option
@kv_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    device: str,
    chunk_size: int | Literal["auto"],
    context: int | None,
    kv: KVType,
    as_json: bool,
) -> None:
    """Say whether MODEL fits a device, and by which numbers. Exit code 0 is yes, 1 is no."""
    with GGUFFile.open(model) as file:
        choice = find(device)
        result = measure(file, choice, chunk_size, context, kv)
    fits = result.fits if isinstance(result, Fit) else result["fits"]
    if as_json:
        data = {**asdict(result), "needed": result.needed} if isinstance(result, Fit) else result
        click.echo(json.dumps({"device": str(choice.adapter or "cpu"), "fits": fits, **data}, indent=2))
    else:
        for line in describe(result, choice):
            click.echo(line)
    ctx.exit(0 if fits else 1)


def measure(
    file: GGUFFile, choice: Choice, chunk_size: int | Literal["auto"], context: int | None = None, kv: KVType = "f16"
) -> "Fit | dict[str, int | bool | None]":
    """What the model takes on the chosen device; for numpy, its weights as float32 with its keys and values."""
    model = load_model(file)
    if choice.adapter is not None:
        with Device(choice.adapter) as opened:
            if chunk_size == "auto":
                tuned = find_tuned(choice.adapter, opened.capabilities, tuned_folder())
                chunk_size = (tuned and tuned.chunk_size) or DEFAULT_CHUNK
            return fit(
                opened, file, model, chunk_size=chunk_size, context=context, kv=kv,
                slots=DEFAULT_SEQUENCES, tokens=shared_tokens(model, context),
            )  # fmt: skip
    needed = sum(4 * math.prod(weight.shape) for weight in model.weights)
    config = CacheConfig.of(
        model, slots=DEFAULT_SEQUENCES, context=context, kv=kv, tokens=shared_tokens(model, context)
    )
    needed += config.total(model.caches, model.states)
    available = host_available()
    return {"needed": needed, "available": available, "fits": available is None or needed <= available}


def describe(result: "Fit | dict[str, int | bool | None]", choice: Choice) -> list[str]:
    """The answer, then the numbers."""
    where = str(choice.adapter or "cpu, numpy")
    if not isinstance(result, Fit):
        answer = "yes" if result["fits"] else "no"
        available = result["available"]
        free = sized(available) if available is not None else "an unknown amount"
        return [f"{answer}: {sized(result['needed'] or 0)} needed, with weights as float32, {free} free ({where})"]
    free = (
        f"{sized(result.available)} free" if result.available is not None else "the driver does not tell what is free"
    )
    return [
        f"{'yes' if result.fits else 'no'}: {sized(result.needed)} needed, {free} ({where})",
        f"  weights  {sized(result.weights)}",
        f"  state    {sized(result.state)}",
        f"  scratch  {sized(result.scratch)}",
        f"  a buffer may hold {sized(result.buffer_limit)}, a binding {sized(result.binding_limit)}",
    ]
