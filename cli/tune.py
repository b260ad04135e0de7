"""`rwkv-gpu tune`: finds the fastest settings for a device, and saves them for the other commands."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from rwkv_gpu.engine.cache.config import DEFAULT_LOOK_AHEAD
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.errors import BadInput, NoMatrixUnits
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Adapter, find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.matrix_units import MatrixUnits, fragment_of
from rwkv_gpu.gpu.shader import fingerprint
from rwkv_gpu.kernels.gemm_config import PRECISIONS
from rwkv_gpu.kernels.tuned import Tuned, save
from rwkv_gpu.kernels.tuned import find as find_tuned
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.measure.tune import Limits, tune
from rwkv_gpu.models.registry import load_generator
from rwkv_gpu.ops.driver_verdict import library_digest
from rwkv_gpu.ops.open_device import open_device
from rwkv_gpu.ops.self_test import tuning_for

from .bench import opened
from .echo import echo_text
from .options import model_arguments, shared
from .page import Page
from .printing import print_text
from .texts import write_text

SMALL, LARGE = "rwkv7-0.1b-q4_k_m", "rwkv7-2.9b-q4_k_m"  # default models for tuning


@click.command("tune", cls=Page, epilog="Example: rwkv-gpu tune model.gguf --minutes 3")
@model_arguments(default=None, file=True)
@shared("synthetic")
@click.option("--minutes", type=click.FloatRange(0.05), default=5.0, show_default=True, metavar="X", help="Time limit.")
@click.option(
    "--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True,
    help="Lowest precision of matrix products that may be chosen for speed.",
)  # fmt: skip
@click.option(
    "--save", "path", type=click.Path(path_type=Path), metavar="FILE", envvar="RWKV_GPU_TUNE_SAVE",
    help="Also write the result to this file.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Start from the defaults, not from earlier results.")
@click.option("--show", is_flag=True, help="Show the settings in use on this device, and stop.")
@shared("as_json", "matrix_units", "device")
def command(
    model: str | None, synthetic: str | None, minutes: float, precision: str, path: Path | None, fresh: bool,
    show: bool, matrix_units: MatrixUnits, device: str, as_json: bool,
) -> None:  # fmt: skip
    """Find the fastest kernels and settings for a device, and save them for the other commands.

    Steps of MODEL are measured; without one, those of a synthetic model, since the built-in model is too small.
    """
    adapter = find(device).adapter
    if adapter is None:
        raise BadInput("the cpu device has nothing to tune; name a GPU by --device, see `rwkv-gpu devices`")
    with _opened(adapter, "off" if show else matrix_units) as gpu:
        tuned = None if fresh else find_tuned(adapter, gpu.capabilities, tuned_folder())
        if not show:
            if model is None and synthetic is None:
                synthetic = SMALL if gpu.capabilities.software else LARGE
            with opened(model, synthetic) as file:
                tuned = _tuned(gpu, adapter, file, Limits.of(gpu, 60 * minutes, precision), tuned)
            print_text(f"saved in {save(tuned, adapter, tuned_folder())}", err=True)
            if path is not None:
                write_text(path, tuned.text())
    if as_json:
        echo_text(json.dumps(asdict(tuned) if tuned else None, indent=2, ensure_ascii=False))
    else:
        print_text(_table(tuned) if tuned else f"{adapter} is not tuned yet; `rwkv-gpu tune` takes some minutes")


def _opened(adapter: Adapter, matrix_units: MatrixUnits) -> Device:
    """Opens the device, with matrix units if it has correct ones; reports the checks."""
    folder = tuned_folder()
    if matrix_units == "auto":
        try:
            fragment_of(adapter)
            click.echo(
                "matrix units: testing them in a separate process. They are experimental, so wgpu refuses them;\n"
                "this is lifted in memory while a device is opened. See docs/matrix-units.md;\n"
                "--matrix-units off skips the test.",
                err=True,
            )
            return open_device(adapter, "on", folder)
        except NoMatrixUnits as error:
            print_text(str(error), err=True)
            matrix_units = "off"
    return open_device(adapter, matrix_units, folder)


def _tuned(gpu: Device, adapter: Adapter, file: GGUFFile, limits: Limits, before: Tuned | None) -> Tuned:
    """The result of a search, merged with earlier results."""
    tuning, longest = tuning_for(gpu, before), max(limits.chunks)
    runner = GpuRunner(
        gpu, file, load_generator(file), tuning=tuning, slots=limits.batch, chunk_size=longest,
        context=limits.context, tokens=2 * limits.context, look_ahead=DEFAULT_LOOK_AHEAD,
    )  # fmt: skip
    found = tune(runner, file, limits, lambda line: print_text(line, err=True))
    models, choices = [file.path.name.removesuffix(".gguf")], {choice.what: choice for choice in found.choices}
    if before is not None:  # keeps earlier choices that were not measured again
        models = list(dict.fromkeys([*before.models, *models]))
        choices = {choice.what: choice for choice in before.choices} | choices
    driver, kernels = adapter.driver, fingerprint()
    return Tuned(
        adapter.name, adapter.backend, driver, kernels, tuple(models), found.tuning, found.chunk_size,
        found.layers_per_submit, found.look_ahead, tuple(choices.values()),
        library_digest() if found.tuning.on_matrix_units else "",
    )  # fmt: skip


def _table(tuned: Tuned) -> str:
    """Prints each choice with its gain."""
    fresh = "" if tuned.kernels == fingerprint() else ", for kernels of another version"
    lines = [f"{tuned.adapter} ({tuned.backend}, {tuned.driver}), tuned by {', '.join(tuned.models)}{fresh}", ""]
    if tuned.choices:
        lines += ["| what | chosen | instead of | less time | tried | wrong |", "|---|---|---|--:|--:|---|"]
    else:
        lines.append("no kernel was measured within the time limit; give more --minutes")
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
