"""Finds the fastest settings for a device: kernels by rows, then lanes, then submit size and look-ahead."""

from dataclasses import dataclass

from ..engine.gpu_runner import GpuRunner
from ..gguf.file import GGUFFile
from ..gpu.device import Device
from ..kernels.tuned import Choice
from ..kernels.tuning import Tuning
from .bench import on_gpu
from .search import Say, Tuner
from .workload import Workload

LADDERS, LANES = 0.7, 0.85  # shares of the time after which the search for products, and then for lanes, ends


def pass_seconds(runner: GpuRunner, work: Workload, look_ahead: int | None = None) -> float:
    """Time of a whole workload, by the host's clock."""
    runner.chunk_size = max(work.chunk, work.batch)
    return on_gpu(runner, work, work.steps(), look_ahead).seconds


@dataclass(frozen=True)
class Limits:
    """The extent of a search."""

    seconds: float
    precision: str  # see candidates.PRECISIONS
    chunk: int  # rows of a prefill step while kernels are tuned
    chunks: tuple[int, ...]  # chunk sizes to try
    decode: int  # tokens of a pass while steps are tuned
    batch: int  # maximum sequences of a decode step
    depth: int  # context of a decode step while attention is tuned

    @property
    def context(self) -> int:
        """Positions that a sequence needs."""
        return max(*self.chunks, self.depth + 1)

    @classmethod
    def of(cls, device: Device, seconds: float, precision: str) -> "Limits":
        """Limits for the available time."""
        if device.capabilities.software:
            return cls(seconds, precision, 64, (32, 64, 128, 256), 4, 8, 1000)
        return cls(seconds, precision, 512, (64, 128, 256, 512, 1024), 32, 32, 4000)


@dataclass(frozen=True)
class Found:
    """The results of a search on one model."""

    tuning: Tuning
    chunk_size: int
    layers_per_submit: int
    look_ahead: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Value:
    """A tuning value, with the values to try: numbers, both values of a switch, or lane counts."""

    name: str
    what: str
    work: str  # the workload to time: decode, prompt, or far (decode after a long context)
    tried: tuple[int, ...] = ()
    models: tuple[str, ...] = ()  # only for models that have all of these
    needs: str = ""  # only if this value is not 0


CACHES, STATES = ("caches",), ("states",)
VALUES = (
    Value("row_lanes", "lanes of a norm", "decode"),
    Value("map_lanes", "lanes by element", "prompt"),
    Value("fuses_token_shift", "products that norm and mix their input", "decode", (), STATES),
    Value("fuses_routing", "products that rank experts", "decode", (), ("experts",)),
    Value("merged_rows", "rows up to which products of several formats share a dispatch", "decode", (0,)),
    Value("prompts_on_matrix_units", "attention of prompts on matrix units", "prompt", (), ("caches", "matrix units")),
    Value("run_length", "positions of a run", "far", (32, 64, 128, 256, 512), CACHES),
    Value("workgroup_lanes", "lanes that attend", "far", (), CACHES),
    Value("lanes_per_key", "lanes that share a key", "far", (8, 16), CACHES, "lanes_per_key"),
    Value("prefetch_keys", "keys that these lanes load at a time", "far", (2, 4, 8), CACHES, "lanes_per_key"),
    Value("decode_lanes", "lanes per workgroup in decode", "far", (64, 128, 256), CACHES, "lanes_per_key"),
    Value("decode_workgroups", "workgroups of decode", "far", (128, 264, 392, 512), CACHES, "lanes_per_key"),
    Value("chunk_tokens", "tokens that recurrences compute at once", "prompt", (0, 8, 16), STATES),
    Value("chunk_state_rows", "rows of a state per workgroup, with chunks", "prompt", (16, 32), STATES, "chunk_tokens"),
    Value("chunk_rows_per_lane", "rows of a state per lane, with chunks", "prompt", (1, 2, 4), STATES, "chunk_tokens"),
    Value("chunk_lanes_per_row", "lanes per row of a state, with chunks", "prompt", (4, 8, 16), STATES, "chunk_tokens"),
    Value("chunks_without_removal", "chunks for recurrences without removal", "prompt", (), STATES, "chunk_tokens"),
    Value("state_space_on_matrix_units", "Mamba-2 on matrix units", "prompt", (), ("states", "matrix units")),
    Value("state_lanes_per_row", "lanes per row of a state", "decode", (4, 8, 16), STATES, "state_lanes_per_row"),
    Value("state_rows_per_lane", "rows of a state per lane", "decode", (1, 2, 4), STATES, "state_lanes_per_row"),
    Value("lora_rows", "rows up to which the time mix computes LoRAs", "decode", (0,), STATES, "state_lanes_per_row"),
)  # fmt: skip


def tune(runner: GpuRunner, file: GGUFFile, limits: Limits, say: Say) -> Found:
    """Tunes kernels by rows, then lanes, then submit size, and look-ahead."""
    tuner = Tuner(runner, file, seconds=limits.seconds, precision=limits.precision, say=say)
    has = {
        "states": bool(runner.model.states),
        "caches": bool(runner.model.caches),
        "experts": any(len(weight.shape) > 2 for weight in runner.model.weights),
        "matrix units": runner.device.capabilities.fragment > 0,
    }
    tuner.share = LADDERS
    tuner.linear(limits.chunk)
    if has["experts"]:
        tuner.experts(limits.chunk)
    tuner.share = LANES
    works = {
        "decode": Workload("tg", 1, 0, 1, 1),
        "prompt": Workload("pp", limits.chunk, 0, 1, limits.chunk),
        "far": Workload("tg", 1, limits.depth, 1, 1),
    }
    for value in VALUES:
        needed = not value.needs or tuner.tuning.value(value.needs)
        if needed and all(has[what] for what in value.models):
            _try_value(tuner, value, works[value.work])
    tuner.share = 1.0
    runner.retune(tuner.tuning)
    return _steps(tuner, runner, limits)


def _try_value(tuner: Tuner, value: Value, work: Workload) -> None:
    if value.tried:
        tuner.number(value.name, value.what, value.tried, work)
    elif isinstance(tuner.tuning.value(value.name), bool):
        tuner.switch(value.name, value.what, work)
    else:
        tuner.lanes(value.name, value.what, work)


def _steps(tuner: Tuner, runner: GpuRunner, limits: Limits) -> Found:
    """Tunes submit size and look-ahead."""
    longest = max(limits.chunks)

    def prefill(chunk: int) -> float:
        return pass_seconds(runner, Workload("pp", longest, 0, 1, chunk))

    decode = Workload("tg", limits.decode, 0, 1, 1)

    def cut(layers: int) -> float:
        runner.queue.layers_per_submit = layers
        return pass_seconds(runner, decode)

    chunk = tuner.setting("chunk size", min(512, longest), limits.chunks, prefill)
    layers = tuner.setting("layers per submit", 0, (1, 2, 4, 8, 16), cut)
    runner.queue.layers_per_submit = layers
    most = runner.cache_config.look_ahead
    ahead = tuner.setting("look-ahead", most, (0, 1, 2, 3, 7, most), lambda n: pass_seconds(runner, decode, n))
    return Found(tuner.tuning, chunk, layers, ahead, tuple(tuner.choices))
