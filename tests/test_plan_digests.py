"""Plans change only if intended: digests of each dispatch of each model on virtual devices, without a GPU.

A refactoring of kernels, passes, shaders or tuning must not change a dispatch. Where a change is intended, look at the
difference, say the reason in the commit, and record again:

    python -m tests.test_plan_digests            # prints differences from the record
    python -m tests.test_plan_digests --record   # writes tests/plan_digests.json.xz
    python -m tests.test_plan_digests --show tiny-llama nvidia 16    # the dispatches of one plan, and their constants

The order of declarations, comments and white space do not count, nor do the numbers of bindings that a shader declares
otherwise in the same order. Layers that are alike share a record: a weight is named relative to the layer of its
dispatch.
"""

import hashlib
import json
import lzma
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.offline.variants import FAMILIES
from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.parameters import parameters_of
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Capabilities
from rwkv_gpu.gpu.loader import place_weights
from rwkv_gpu.gpu.plan import Slice
from rwkv_gpu.gpu.shader import COMMENT, Linked
from rwkv_gpu.gpu.virtual import VirtualDevice
from rwkv_gpu.gpu.weights import Weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.shapes import SHAPES
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.dispatch import WRITTEN, UnplacedDispatch
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.sampler_state import GpuSamplerState
from rwkv_gpu.ops.values import CachedTensor, JoinedVectors, Operand, UniformTable, Value
from tests.cases import each
from tests.measure.tiny import opened_layers

RECORD = Path(__file__).parent / "plan_digests.json.xz"
GOLDEN = {path.stem: path for path in sorted((Path(__file__).parent / "golden").glob("*.gguf"))}
SYNTHETIC = {f"{name}-q4_k_m": name for name in SHAPES}
MODELS = [*GOLDEN, *SYNTHETIC]
LAYERS = 6  # layers of synthetic models that contain every kind of layer
WHOLE = ("gemma-4-e4b-7.5b",)  # its last 18 layers share keys and values of the first
AMD = FAMILIES["amd"]
DEVICES: dict[str, Capabilities] = {
    "webgpu": FAMILIES["webgpu"],
    "nvidia": FAMILIES["nvidia"],
    "nvidia-matrix-units": FAMILIES["nvidia-matrix-units"],
    "amd-wave32": replace(AMD, subgroup_size=32, subgroup_width=32),
    "amd-wave64-matrix-units": replace(FAMILIES["amd-matrix-units"], subgroup_width=64),
    "intel": FAMILIES["intel"],
    "apple": FAMILIES["apple"],
}
ROWS = (1, 2, 4, 8, 16, 64, 512)
FEW_ROWS = (1, 16, 512)  # a sequence, a batch and a prompt
PROMPT = 64  # steps of at least this many rows have one sequence

Row = tuple[str, str, str, str, int]  # of a dispatch: name, digests of text, constants and operands; workgroups
Plans = dict[str, dict[str, list[Row]]]  # by device and rows, of one model
FIELDS = ("name", "shader text", "constants", "operands", "workgroups")


def plans_of(model: str, chosen: Mapping[str, Sequence[int]] = dict.fromkeys(DEVICES, ROWS)) -> Plans:
    """Returns the digests of a model's plans: all, or those of some numbers of rows by device."""
    with _open(model) as file:
        return {
            f"{device}, {rows} rows": digests(dispatches, weights)
            for device, every in chosen.items()
            for rows, dispatches, weights in _recorded(file, DEVICES[device], every)
        }


def _open(model: str) -> GGUFFile:
    """Opens a model for recording plans."""
    if model in GOLDEN:
        return GGUFFile.open(GOLDEN[model])
    return opened_layers(model, SHAPES[SYNTHETIC[model]].keys["block_count"] if SYNTHETIC[model] in WHOLE else LAYERS)


def _recorded(
    file: GGUFFile, can: Capabilities, every: Sequence[int]
) -> Iterator[tuple[int, Sequence[UnplacedDispatch], Weights]]:
    """Returns the dispatches of a step for each number of rows, over one set of weights."""
    device, model, tuning = VirtualDevice(can), load_model(file), default_tuning(can)
    weights = place_weights(device, parameters_of(file, model), lambda nbytes, _: device.buffer(nbytes, "weights"))

    def slice_of(nbytes: int, purpose: str) -> Slice:
        return Slice(device.buffer(nbytes, purpose), 0, nbytes)

    for rows in every:
        prompt = rows >= PROMPT
        sequences = 1 if prompt else rows
        config = CacheConfig.of(model, slots=sequences, kv="f16", context=None)
        states = {state.name: slice_of(config.state_bytes(state), state.name) for state in model.states}
        caches = {one.name: tuple(slice_of(config.nbytes(one), what) for what in one.stored) for one in model.caches}
        recorder = Recorder(
            device, weights, rows, Scratch(device), tuning, states, max_segments=sequences, max_outputs=sequences,
            caches=Caches(caches, config.kind, config.max_pages, config.context, config.windows(model.caches)),
            single=not prompt, sampler_state=GpuSamplerState(device, sequences, model.vocabulary),
        )  # fmt: skip
        logits = model.forward(recorder, recorder.input("ids", "uint32", (rows,)))
        chosen = recorder.sample(logits, how="any" if prompt else "plain")
        yield rows, recorder.dispatches([logits, chosen]), weights


def digests(dispatches: Sequence[UnplacedDispatch], weights: Weights) -> list[Row]:
    """Returns a row for each dispatch."""
    places = {
        (id(shard.slice.buffer), shard.slice.offset): f"{name}{f' {index}' if index else ''}"
        for name, weight in weights.items()
        for index, shard in enumerate(weight.shards)
    }
    writers: dict[int, str] = {}
    found = []
    for one in dispatches:
        name = _relative(one.name, one.layer)
        text, constants = parts_of(one.linked)
        operands = [
            f"{one.bindings[number].name}: {_operand(operand, one.layer, places, writers)}"
            for number, operand in sorted(one.operands.items())
        ]
        found.append((name, digest(text), digest(constants), digest("\n".join(operands)), one.groups))
        for number, operand in one.operands.items():
            if isinstance(operand, Value) and one.bindings[number].access == WRITTEN:
                writers[id(operand.root)] = f"{one.name}.{one.bindings[number].name}"
    return found


def _operand(operand: Operand, layer: int | None, places: Mapping[tuple[int, int], str], writers: Mapping[int, str]):
    """Describes a binding by its role."""
    if isinstance(operand, Value):
        writer = operand.root.name or writers.get(id(operand.root), "new")
        return f"{_relative(writer, layer)} {operand.shape} {operand.offset} {operand.nbytes}"
    if isinstance(operand, Slice):
        name = places.get((id(operand.buffer), operand.offset), f"{operand.buffer.purpose}+{operand.offset}")
        return f"{_relative(name, layer)} {operand.nbytes}"
    if isinstance(operand, UniformTable):
        return f"table {operand.words}"
    if isinstance(operand, JoinedVectors):
        return f"vectors {[name and _relative(name, layer) for name in operand.names]} {operand.lengths}"
    assert isinstance(operand, CachedTensor)
    return f"tensor {_relative(str(operand.key), layer)}"


def _relative(text: str, layer: int | None) -> str:
    """Replaces layer numbers in names by the distance from the layer of the dispatch."""
    return re.sub(
        r"\bblk\.(\d+)\b", lambda found: f"blk.{int(found[1]) - layer:+}" if layer is not None else "blk", text
    )


@lru_cache(20_000)
def parts_of(linked: Linked) -> tuple[str, str]:
    """Returns the declarations of a shader in a fixed order, and its constants; without comments."""
    text = " ".join(COMMENT.sub("", linked.source).split())
    constants = sorted(re.findall(r"(?:const|alias) [A-Z]\w* = [^;]*;", text))
    return "\n".join(sorted(_declarations(text))), "\n".join(constants)


def _declarations(text: str) -> Iterator[str]:
    """Returns the declarations at the top level, except constants that the host writes."""
    depth = start = 0
    for found in re.finditer(r"[{}();]", text):
        token = found[0]
        depth += (token in "{(") - (token in "})")
        if depth == 0 and token in ";}":
            one = text[start : found.end()].strip()
            start = found.end()
            if not re.fullmatch(r"(?:const|alias) [A-Z]\w* = [^;]*;", one):
                yield one


@cache
def digest(text: str) -> str:
    """Eight hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def recorded() -> dict[str, Plans]:
    """Reads the record, by model."""
    stored = json.loads(lzma.decompress(RECORD.read_bytes()))
    rows = [(*fields, groups) for *fields, groups in stored["rows"]]
    return {
        model: {key: [rows[index] for index in indices] for key, indices in plans.items()}
        for model, plans in stored["models"].items()
    }


def store(found: Mapping[str, Plans]) -> None:
    """Writes the record: each distinct row once."""
    numbers: dict[Row, int] = {}
    models = {
        model: {key: [numbers.setdefault(row, len(numbers)) for row in rows] for key, rows in plans.items()}
        for model, plans in found.items()
    }
    text = json.dumps({"rows": list(numbers), "models": models}, separators=(",", ":"))
    RECORD.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def differences(model: str, was: Plans, now: Plans) -> Iterator[str]:
    """Returns a line for each dispatch that differs."""
    for key in was.keys() | now.keys():
        old, new = was.get(key, []), now.get(key, [])
        if len(old) != len(new):
            names = [row[0] for row in old], [row[0] for row in new]
            first = next(
                (i for i, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), min(map(len, names))
            )
            seen = [", ".join(islice(each, first, first + 2)) or "the end" for each in names]
            yield f"{model}, {key}: {len(old)} dispatches -> {len(new)}, from number {first} on: {seen[0]} -> {seen[1]}"
            continue
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            if before != after:
                changed = [name for name, a, b in zip(FIELDS, before, after, strict=True) if a != b]
                shown = f"{before[0]} -> {after[0]}" if before[0] != after[0] else after[0]
                groups = f" ({before[4]} -> {after[4]})" if before[4] != after[4] else ""
                yield f"{model}, {key}, dispatch {number} {shown}: {', '.join(changed)}{groups}"


@pytest.fixture(scope="module")
def record() -> dict[str, Plans]:
    return recorded()


def changed(model: str, plans: Plans, record: Mapping[str, Plans]) -> str:
    """Returns lines about the differences from the record of these plans; empty if there are none."""
    was = record.get(model, {})
    lines = sorted(differences(model, {key: was[key] for key in plans.keys() & was.keys()}, plans))
    return "\n".join([*lines[:20], f"... {len(lines)} dispatches in all"]) if lines else ""


@each("model", MODELS)
def test_a_plan_of_each_model_equals_that_of_the_record(model, record):
    """Devices and numbers of rows take turns, so that each pair has some models. For intended changes, see this file's
    docstring.
    """
    number = MODELS.index(model)
    device, rows = [*DEVICES][number % len(DEVICES)], FEW_ROWS[number % len(FEW_ROWS)]
    assert not changed(model, plans_of(model, {device: [rows]}), record)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_the_dispatches_of_plans_of_every_device_equal_those_of_the_record(model, record):
    """Numbers of rows take turns: four for models of true sizes, two for others. For intended changes, see this file's
    docstring.
    """
    others = [rows for rows in ROWS if rows not in FEW_ROWS]
    turns = {
        device: [*(FEW_ROWS if model in SYNTHETIC else [FEW_ROWS[number % 3]]), others[number % len(others)]]
        for number, device in enumerate(DEVICES, MODELS.index(model))
    }
    plans = plans_of(model, turns)
    assert plans.keys() <= record[model].keys()
    assert not changed(model, plans, record)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_dispatches_of_every_plan_equal_those_of_the_record(model, record):
    plans = plans_of(model)
    assert plans.keys() == record[model].keys()
    assert not changed(model, plans, record)


def show(model: str, device: str, rows: int) -> None:
    """Prints a plan."""
    with _open(model) as file:
        for _, dispatches, weights in _recorded(file, DEVICES[device], [rows]):
            for row, one in zip(digests(dispatches, weights), dispatches, strict=True):
                print(*row, one.linked.name)
                print("   ", parts_of(one.linked)[1].replace("\n", " "))


def main() -> int:
    """Compares the plans with the record, or writes the record."""
    if "--show" in sys.argv:
        model, device, rows = sys.argv[sys.argv.index("--show") + 1 :]
        show(model, device, int(rows))
        return 0
    with ProcessPoolExecutor() as pool:
        found = dict(zip(MODELS, pool.map(plans_of, MODELS), strict=True))
    if "--record" in sys.argv:
        store(found)
        return 0
    was = recorded()
    lines = [line for model in MODELS for line in sorted(differences(model, was.get(model, {}), found[model]))]
    print("\n".join(lines) or "no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
