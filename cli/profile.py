"""`rwkv-gpu profile`: the time of every dispatch of a model."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np

from rwkv_gpu import __version__
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.split import SplitRunner
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.matrix_units import MatrixUnits
from rwkv_gpu.kernels.tuned import slug
from rwkv_gpu.llm.drafts import DraftOptions
from rwkv_gpu.measure.profiling import (
    ANSWERED,
    DraftResult,
    Profiled,
    as_data,
    draft_result,
    heading,
    profile,
    profile_tower,
    table,
    trace,
)
from rwkv_gpu.measure.report import Place, Subject, facts
from rwkv_gpu.measure.roofline import Roofline, measure_roofline
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import Model, is_encoder, load_model, refuse_source
from rwkv_gpu.ops.kv_format import KVType
from rwkv_gpu.ops.media import EMBEDDED
from rwkv_gpu.vision.image import prepare
from rwkv_gpu.vision.media_projector import read_projector
from rwkv_gpu.vision.pixels import picture_of

from .bench import opened, refuse_decode, runner_for, texts_of
from .echo import echo_text
from .model_name import FileName
from .options import counts_option, model_arguments, shared
from .page import Page
from .printing import print_text
from .texts import write_text

SIDE = 1024  # pixels of an image's side


@click.command("profile", cls=Page, epilog="Example: rwkv-gpu profile model.gguf -p 512 -b 1,16 --trace trace.json")
@model_arguments(default=None, file=True)
@shared("synthetic")
@counts_option("profile", "-p", "--prompt", default="512", help="Tokens of a prefill step; 0 skips prefill.")
@counts_option("profile", "-b", "--batch", shown="1", help="Sequences of a decode step; 0 skips decode.")
@counts_option("profile", "-d", "--depth", default="0", help="Tokens in the context before the step.")
@shared("repeats")
@click.option("--trace", "trace_path", type=click.Path(path_type=Path), help="Write a timeline for ui.perfetto.dev.")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FOLDER", envvar="RWKV_GPU_PROFILE_SAVE",
    help="Write FOLDER/GPU/MODEL.json and .md.",
)  # fmt: skip
@shared("no_draft", "as_json", "kv", "matrix_units", "device")
@click.option("-mm", "--mmproj", type=FileName(), metavar="FILE", help="Also time this projector's vision tower.")
def command(
    model: str | None, synthetic: str | None, prompt: list[int], batch: list[int] | None, depth: list[int],
    repeats: int, trace_path: Path | None, save: Path | None, kv: KVType, matrix_units: MatrixUnits, device: str,
    no_draft: bool, mmproj: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Time every dispatch of prefill and decode steps, compared with what the device can do.

    For an embedding model, the step embeds one text. If the model has its own draft head, the head's step is timed,
    too, and the drafts of a greedy answer are counted.
    """
    with ExitStack() as running:
        file = running.enter_context(opened(model, synthetic))
        loaded = load_model(file)
        heads = not no_draft and DraftOptions().head(loaded) is not None
        works = steps_of(loaded, prompt, batch, depth, heads=heads)
        runner = running.enter_context(
            runner_for(file, works + [ANSWERED] * heads, device, kv=kv, matrix_units=matrix_units, head=heads)
        )
        if not isinstance(runner, GpuRunner):
            where = "a model over several devices" if isinstance(runner, SplitRunner) else "the cpu device"
            raise BadInput(f"{where} cannot be profiled; name one GPU by --device, see `rwkv-gpu devices`")
        roofline = measure_roofline(runner.device)
        subject, place = Subject.of(file), Place.of(runner.device, roofline, __version__)
        profiles = list(profile(runner, works, repeats, roofline))
        if mmproj is not None:
            profiles += tower_profiles(Path(mmproj), runner.device, repeats, roofline)
        drafts = draft_result(runner) if heads else None
    text = _text(subject, place, profiles, drafts)
    found = {**facts(subject, place), "profiles": [as_data(one) for one in profiles]}
    data = json.dumps(found | ({"drafts": asdict(drafts)} if drafts else {}), indent=2)
    files = {trace_path: trace(profiles)} if trace_path else {}
    if save:
        stem = save / slug(place.device) / subject.name
        saved = {".json": data, ".md": text}
        files |= {stem.with_name(stem.name + end): content for end, content in saved.items()}
    for path, content in files.items():
        write_text(path, content)
        echo_text(f"wrote {path}", err=True)
    if as_json:
        echo_text(data)
    else:
        print_text(text)


def tower_profiles(path: Path, device: Device, repeats: int, roofline: Roofline) -> Iterator[Profiled]:
    """The profiles of a projector's vision tower, and of one before it, for an image of 1024 x 1024."""
    projector = read_projector(path)
    encoder, _ = projector.encoders(device)
    if encoder is None or projector.vision is None:
        raise BadInput(f"{path}: has no vision tower; give a projector for images")
    image = prepare(projector.vision, picture_of(np.zeros((SIDE, SIDE, 3), np.uint8))).units[-1]
    tile = image.tiles[-1]
    for tower in (encoder.first, encoder):
        if tower is not None:
            assert isinstance(tower.runner, GpuRunner), "it has the device of the model"
            yield profile_tower(tower.runner, tower.batch(image, tile), repeats, roofline)
            tile = tower.encode(image, tile)[EMBEDDED] if tower is encoder.first else tile


def steps_of(
    model: Model, prompt: Sequence[int], batch: Sequence[int] | None, depth: Sequence[int], *, heads: bool = False
) -> list[Workload]:
    """The steps to time, as workloads."""
    refuse_source(model)
    if is_encoder(model):
        refuse_decode({"-b": batch, "--depth": depth})
        return texts_of(model, prompt, [1], None)
    works = [Workload("pp", p, d, 1, p) for d in depth for p in prompt if p]
    works += [Workload("tg", 1, d, b, b) for d in depth for b in ([1] if batch is None else batch) if b]
    works += [replace(work, kind="draft") for work in works if work.kind == "tg" and heads]
    if not works:
        raise BadInput("nothing to profile: --prompt or --batch must be above 0")
    return works


def _text(subject: Subject, place: Place, profiles: list[Profiled], drafts: DraftResult | None) -> str:
    parts = [f"# {subject.name}\n\n{subject}\n\n{place}, rwkv-gpu {place.version}\n"]
    parts += [f"## {one.name}\n\n{heading(one)}\n\n{table(one)}\n" for one in profiles]
    return "\n".join([*parts, *([f"{drafts}\n"] if drafts else [])])
