"""`rwkv-gpu tune`: finds the fastest constants for a device, and keeps them for the other commands."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from rwkv_gpu.engine.cache.config import DEFAULT_LOOK_AHEAD
from rwkv_gpu.engine.runner import GpuRunner
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Adapter, find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.shader import fingerprint
from rwkv_gpu.gpu.tuned import Tuned, save
from rwkv_gpu.gpu.tuned import find as find_tuned
from rwkv_gpu.measure.candidates import PRECISIONS
from rwkv_gpu.measure.tune import Limits, tune
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.self_test import tuning_for

from .bench import opened
from .folders import tuned_folder
from .options import ModelName, device_option, json_option, synthetic_option

SMALL, LARGE = "rwkv7-0.1b-q4_k_m", "rwkv7-2.9b-q4_k_m"  # to tune by where nothing is named


@click.command("tune", epilog="Example: rwkv-gpu tune model.gguf --minutes 3")
@click.argument("model", metavar="[MODEL.gguf]", type=ModelName(), required=False)
@synthetic_option
@click.option("--minutes", type=click.FloatRange(0.05), default=5.0, show_default=True, help="Stop after so long.")
@click.option(
    "--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True,
    help="What products may be rounded to for speed.",
)  # fmt: skip
@click.option("--save", "path", type=click.Path(path_type=Path), help="Write a copy, as it may come with the package.")
@click.option("--fresh", is_flag=True, help="Begin from the defaults, not from what was found before.")
@click.option("--show", is_flag=True, help="Tell what is used on this device, and why; tune nothing.")
@device_option
@json_option
def command(
    model: str | None,
    synthetic: str | None,
    minutes: float,
    precision: str,
    path: Path | None,
    fresh: bool,
    show: bool,
    device: str,
    as_json: bool,
) -> None:
    """Find the fastest kernels and settings for a device, by steps of MODEL; without one, by a synthetic model."""
    adapter = find(device).adapter
    if adapter is None:
        raise BadInput("numpy has nothing to tune; choose a GPU with --device, see `rwkv-gpu devices`")
    with Device(adapter) as gpu:
        tuned = None if fresh else find_tuned(adapter, gpu.capabilities, tuned_folder())
        if not show:
            if model is None and synthetic is None:
                synthetic = SMALL if gpu.capabilities.software else LARGE
            with opened(model, synthetic) as file:
                tuned = _tuned(gpu, adapter, file, Limits.of(gpu, 60 * minutes, precision), tuned)
            click.echo(f"kept in {save(tuned, adapter, tuned_folder())}", err=True)
            if path is not None:
                path.write_text(tuned.text(), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(asdict(tuned) if tuned else None, indent=2, ensure_ascii=False))
    else:
        click.echo(_table(tuned) if tuned else f"{adapter} is not tuned: `rwkv-gpu tune` does it in minutes")


def _tuned(gpu: Device, adapter: Adapter, file: GGUFFile, limits: Limits, before: Tuned | None) -> Tuned:
    """The search, from what was found before, and all that is known with what it found."""
    tuning, longest = tuning_for(gpu, before), max(limits.chunks)
    runner = GpuRunner(
        gpu, file, load_model(file), tuning=tuning, slots=limits.batch, chunk_size=longest,
        context=limits.context, tokens=2 * limits.context, look_ahead=DEFAULT_LOOK_AHEAD,
    )  # fmt: skip
    found = tune(runner, file, limits, lambda line: click.echo(line, err=True))
    models, choices = [file.path.name.removesuffix(".gguf")], {choice.what: choice for choice in found.choices}
    if before is not None:  # what was not asked again
        models = list(dict.fromkeys([*before.models, *models]))
        choices = {choice.what: choice for choice in before.choices} | choices
    driver, kernels = adapter.driver, fingerprint()
    return Tuned(
        adapter.name, adapter.backend, driver, kernels, tuple(models), found.tuning, found.chunk_size,
        found.layers_per_submit, found.look_ahead, tuple(choices.values()),
    )  # fmt: skip


def _table(tuned: Tuned) -> str:
    """Each choice with its margin."""
    fresh = "" if tuned.kernels == fingerprint() else ", with kernels of another version"
    lines = [f"{tuned.adapter} ({tuned.backend}, {tuned.driver}), tuned by {', '.join(tuned.models)}{fresh}", ""]
    lines += ["| what | chosen | instead of | less time | tried | wrong |", "|---|---|---|--:|--:|---|"]
    for one in tuned.choices:
        same = one.chosen == one.default
        gain = "" if same else f"{one.gain:.1%} ± {one.error:.1%}"
        instead = "" if same else one.default
        wrong = ", ".join(one.wrong)
        lines.append(f"| {one.what} | {one.chosen} | {instead} | {gain} | {one.tried} | {wrong} |")
    lines.append(
        f"\nchunk size {tuned.chunk_size}, layers per submit {tuned.layers_per_submit}, look-ahead {tuned.look_ahead}"
    )
    return "\n".join(lines)
