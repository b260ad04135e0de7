"""Times recurrences of prompts by themselves, token by token beside chunks, in microseconds of one layer.

    python -m benchmarks.recurrences --rows 512,2048

Each has a plan of its own and runs several times, in turns. A line has the time of a layer by the GPU's clock, then
those of its dispatches, then that of a step of all layers, which may overlap, with what brings inputs into place.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan, Slice
from rwkv_gpu.gpu.profile import lap, profile_plan
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.self_test import tuning_for
from rwkv_gpu.ops.vocabulary import DeltaRule, Mixed, State, StateSpace, Weight

Array = npt.NDArray[Any]
LAYERS, LAPS = 8, 7


@dataclass(frozen=True)
class Shape:
    """One recurrence: its parameters, its state, the widths of what it reads, and what a model says."""

    weights: Mapping[str, Array]
    state: tuple[int, ...]
    widths: Mapping[str, int]
    says: Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> Array:
    """Random numbers, always the same."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def time_mix(heads: int, size: int) -> Shape:
    """Of RWKV-7."""
    wide = heads * size
    names = "r", "k", "v", "gate", "v_first", "a", "v_gate", "w"
    return Shape(
        {"vectors": normal(5, wide)}, (heads, size, size), dict.fromkeys(names, wide),
        lambda g, w, state, /, **x: g.time_mix(Mixed(**x), w["vectors"], 64e-5, state),
    )  # fmt: skip


def delta_rule(heads: int, key_heads: int, size: int) -> Shape:
    """Of Qwen3.5."""
    weights = {"bias": normal(heads), "rate": -np.exp(normal(heads)), "norm": normal(size)}

    def says(g: Any, w: Any, state: State, /, **x: Any) -> Any:
        how = DeltaRule(key_heads, False, w["bias"], w["rate"], w["norm"], 1e-6, "silu")
        return g.gated_delta_rule([x["qkv"]], x["beta"], x["decay"], x["gate"], how, state)

    widths = {"qkv": (2 * key_heads + heads) * size, "beta": heads, "decay": heads, "gate": heads * size}
    return Shape(weights, (heads, size, size), widths, says)


def ssd(heads: int, size: int, columns: int) -> Shape:
    """Of Mamba-2."""
    weights = {"dt": normal(heads), "a": -np.exp(normal(heads)), "d": normal(heads)}

    def says(g: Any, w: Any, state: State, /, **x: Any) -> Any:
        return g.ssd(x["xbc"], x["projected"], StateSpace(w["dt"], w["a"], w["d"]), state, groups=1)

    inner = heads * size
    widths = {"xbc": inner + 2 * columns, "projected": 2 * inner + 2 * columns + heads}
    return Shape(weights, (heads, size, columns), widths, says)


def wkv6(heads: int, size: int) -> Shape:
    """Of RWKV-6."""
    wide = heads * size

    def says(g: Any, w: Any, state: State, /, **x: Any) -> Any:
        return g.wkv6(x["r"], x["w"], x["k"], x["v"], x["gate"], state, vectors=w["vectors"], eps=64e-5)

    return Shape(
        {"vectors": normal(3, wide)}, (heads, size, size), dict.fromkeys(("r", "w", "k", "v", "gate"), wide), says
    )


SHAPES = {
    "RWKV-7 2.9B, 40 heads of 64": time_mix(40, 64),
    "Qwen3.5, 32 value heads of 128": delta_rule(32, 16, 128),
    "Mamba-2 2.7B, 80 heads of 64 by 128": ssd(80, 64, 128),
    "Falcon-H1 3B, 32 heads of 128 by 256": ssd(32, 128, 256),
    "RWKV-6 3B, 40 heads of 64": wkv6(40, 64),
}


def ways(tuning: Tuning) -> Iterator[tuple[str, Tuning]]:
    """Token by token, on matrix units where a device has them, and by chunks."""
    plain = replace(tuning, state_space_on_matrix_units=False)
    yield "token by token", replace(plain, chunk_tokens=0)
    yield "on matrix units", replace(tuning, chunk_tokens=0, state_space_on_matrix_units=True)
    for tokens, rows, each, lanes in (
        (8, 16, 1, 4),
        (8, 16, 1, 16),
        (16, 16, 1, 4),
        (16, 16, 1, 16),
        (16, 16, 2, 16),
        (16, 8, 1, 16),
    ):
        by_chunks = replace(
            plain, chunk_tokens=tokens, chunk_state_rows=rows, chunk_rows_per_lane=each, chunk_lanes_per_row=lanes,
            chunks_without_removal=True, state_space_chunks=True, chunk_least_rows=1,
        )  # fmt: skip
        yield f"chunks of {tokens}, {rows} rows of S, {each} for {lanes} lanes", by_chunks


def recorded(device: Device, shape: Shape, rows: int, tuning: Tuning) -> Plan:
    """A plan of layers that read the same inputs and have states of their own."""
    names = [f"state{layer}" for layer in range(LAYERS)]
    nbytes = 4 * int(np.prod(shape.state))
    slices = {name: Slice(device.buffer(nbytes, "states"), 0, nbytes) for name in names}
    weights = upload_weights(device, dict(shape.weights))
    recorder = Recorder(device, weights, rows, Scratch(device), tuning, states=slices, max_segments=1)
    inputs = {name: recorder.input(name, np.float32, (rows, width)) for name, width in shape.widths.items()}
    given = {name: Weight(name, array.shape) for name, array in shape.weights.items()}
    outputs = {}
    for layer, name in enumerate(names):
        with recorder.layer(layer):
            outputs[name] = shape.says(recorder, given, State(name, shape.state), **inputs)
    return recorder.finish(outputs)


def measure(device: Device, name: str, rows: int, *, few: bool) -> None:
    """Prints a line for each way, and one for each of its dispatches."""
    shape = SHAPES[name]
    every = list(ways(tuning_for(device)))
    chosen = every[:-5] if few else every
    plans: dict[str, Plan] = {}
    for way, tuning in chosen:
        plan = recorded(device, shape, rows, tuning)
        if chunked(plan) or kinds(plan) not in map(kinds, plans.values()):
            plans[way] = plan
    inputs = {key: 1 / (1 + np.exp(-normal(rows, width))) for key, width in shape.widths.items()}
    given = inputs | Batch.of([(0, 0, [0] * rows)]).arrays()
    laps: dict[str, list[float]] = {way: [] for way in plans}
    for _ in range(LAPS):
        for way, plan in plans.items():
            laps[way].append(lap(plan, rows, given, 1, 1))
    print(f"{name}, {rows} rows: µs of a layer")
    for way, plan in plans.items():
        steps = profile_plan(plan, rows, given, 3, 1, 1).steps
        times: dict[str, float] = {}
        for step in steps:
            times[kind(step.name)] = times.get(kind(step.name), 0.0) + step.seconds * 1e6 / LAYERS
        times.pop("copy_rows", None)
        parts = ", ".join(f"{name} {spent:.1f}" for name, spent in times.items())
        print(f"  {sum(times.values()):8.1f}  {way}  ({parts}; whole step {median(laps[way]) * 1e6:.0f})", flush=True)


def kind(name: str) -> str:
    """The kernel of a dispatch."""
    return re.sub(r".* |\..*", "", name)


def kinds(plan: Plan) -> set[str]:
    """The kernels of a plan."""
    return {kind(dispatch.name) for dispatch in plan.dispatches}


def chunked(plan: Plan) -> bool:
    """Whether it is by chunks of tokens, whose sizes the tuning says."""
    return any("chunk" in one for one in kinds(plan))


@click.command()
@click.option("--rows", default="512,2048", help="Rows of a prompt's step, separated by commas.")
@click.option("--only", default="", help="Shapes whose name has this.")
@click.option("--few", is_flag=True, help="Only the first kind of chunks.")
@click.option("--matrix-units", is_flag=True)
@click.option("--device", "wanted", default="auto", help="As --device of rwkv-gpu.")
def main(rows: str, only: str, few: bool, matrix_units: bool, wanted: str) -> None:
    """Times recurrences of prompts, by shape, rows and way."""
    adapter = choose(list_adapters(), wanted).adapter
    if adapter is None:
        sys.exit("no GPU")
    try:
        with Device(adapter, matrix_units=matrix_units) as device:
            print(adapter)
            for name in (name for name in SHAPES if only in name):
                for count in map(int, rows.split(",")):
                    measure(device, name, count, few=few)
    except RwkvGpuError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
