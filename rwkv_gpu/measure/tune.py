"""What is fastest on a device: kernels by rows, then lanes, then how steps are cut, and how far they run ahead."""

from dataclasses import dataclass

from ..engine.gpu_runner import GpuRunner
from ..gguf.file import GGUFFile
from ..gpu.device import Device
from ..kernels.tuned import Choice
from ..kernels.tuning import Tuning
from .bench import on_gpu
from .search import Say, Tuner
from .workload import Workload

LADDERS, LANES = 0.7, 0.85  # of the time, until which products, and then lanes, may be tried


def pass_seconds(runner: GpuRunner, work: Workload, look_ahead: int | None = None) -> float:
    """Of a whole workload, by our own clock."""
    runner.chunk_size = max(work.chunk, work.batch)
    return on_gpu(runner, work, work.steps(), look_ahead).seconds


@dataclass(frozen=True)
class Limits:
    """How far a search goes."""

    seconds: float
    precision: str  # see candidates.PRECISIONS
    chunk: int  # rows of a prompt's step, while kernels are tuned
    chunks: tuple[int, ...]  # that are tried
    decode: int  # tokens of a pass, where steps are tuned
    batch: int  # sequences of a decode step, at most
    depth: int  # that a decode step looks back over, where attention is tuned

    @property
    def context(self) -> int:
        """Positions that a sequence needs."""
        return max(*self.chunks, self.depth + 1)

    @classmethod
    def of(cls, device: Device, seconds: float, precision: str) -> "Limits":
        """What minutes are enough for."""
        if device.capabilities.software:
            return cls(seconds, precision, 64, (32, 64, 128, 256), 4, 8, 1000)
        return cls(seconds, precision, 512, (64, 128, 256, 512, 1024), 32, 32, 4000)


@dataclass(frozen=True)
class Found:
    """What a search on one model gives."""

    tuning: Tuning
    chunk_size: int
    layers_per_submit: int
    look_ahead: int
    choices: tuple[Choice, ...]


def tune(runner: GpuRunner, file: GGUFFile, limits: Limits, say: Say) -> Found:
    """Kernels by rows, then lanes, then how steps are cut, and how far they run ahead of the host."""
    tuner = Tuner(runner, file, seconds=limits.seconds, precision=limits.precision, say=say)
    attends, mixes = bool(runner.model.caches), any(len(weight.shape) > 2 for weight in runner.model.weights)
    tuner.share = LADDERS
    tuner.linear(limits.chunk)
    if mixes:
        tuner.experts(limits.chunk)
    decode, prompt = Workload("tg", 1, 0, 1, 1), Workload("pp", limits.chunk, 0, 1, limits.chunk)
    tuner.share = LANES
    tuner.lanes("row_lanes", "lanes of a norm", decode)
    tuner.lanes("map_lanes", "lanes by element", prompt)
    if runner.model.states:
        tuner.switch("fuses_token_shift", "products that norm and mix what they read", decode)
    if mixes:
        tuner.switch("fuses_routing", "products that rank experts", decode)
    if tuner.tuning.fusion.merged_rows:
        rows = tuner.tuning.fusion.merged_rows
        tuner.number("merged_rows", "rows whose products of several formats share a dispatch", (0, rows), decode)
    if runner.device.capabilities.fragment and attends:
        tuner.switch("prompts_on_matrix_units", "prompts that attend on matrix units", prompt)
    if attends:
        far = Workload("tg", 1, limits.depth, 1, 1)
        tuner.number("run_length", "positions of a run", (32, 64, 128, 256, 512), far)
        tuner.lanes("workgroup_lanes", "lanes that attend", far)
        if tuner.tuning.attention.lanes_per_key:
            tuner.number("lanes_per_key", "lanes that share a key", (8, 16), far)
            tuner.number("prefetch_keys", "keys that they ask for at a time", (2, 4, 8), far)
            tuner.number("decode_lanes", "lanes that attend in decode", (64, 128, 256), far)
            tuner.number("decode_workgroups", "workgroups that attend in decode", (128, 264, 392, 512), far)
    if runner.model.states:
        tuner.number("chunk_tokens", "tokens that a recurrence computes at once", (0, 8, 16), prompt)
        if tuner.tuning.recurrence.chunk_tokens:
            tuner.number("chunk_state_rows", "rows of a state that go from chunk to chunk together", (16, 32), prompt)
            tuner.number("chunk_rows_per_lane", "rows of such a state for a lane", (1, 2, 4), prompt)
            tuner.number("chunk_lanes_per_row", "lanes that share such rows", (4, 8, 16), prompt)
            tuner.switch("chunks_without_removal", "recurrences that only add by chunks", prompt)
            tuner.switch("state_space_chunks", "those of Mamba-2 by chunks", prompt)
        if runner.device.capabilities.fragment:
            tuner.switch("state_space_on_matrix_units", "prompts of Mamba-2 on matrix units", prompt)
    if runner.model.states and tuner.tuning.recurrence.state_lanes_per_row:
        tuner.number("state_lanes_per_row", "lanes that share a row of a state", (4, 8, 16), decode)
        tuner.number("state_rows_per_lane", "rows of a state that lanes share", (1, 2, 4), decode)
        tuner.number(
            "lora_rows", "rows whose LoRAs end within the time mix", (0, tuner.tuning.fusion.lora_rows), decode
        )
    tuner.share = 1.0
    runner.retune(tuner.tuning)
    longest = max(limits.chunks)

    def prefill(chunk: int) -> float:
        return pass_seconds(runner, Workload("pp", longest, 0, 1, chunk))

    said = Workload("tg", limits.decode, 0, 1, 1)

    def cut(layers: int) -> float:
        runner.queue.layers_per_submit = layers
        return pass_seconds(runner, said)

    chunk = tuner.setting("chunk size", min(512, longest), limits.chunks, prefill)
    layers = tuner.setting("layers per submit", 0, (1, 2, 4, 8, 16), cut)
    runner.queue.layers_per_submit = layers
    most = runner.cache_config.look_ahead
    ahead = tuner.setting("look-ahead", most, (0, 1, 2, 3, 7, most), lambda n: pass_seconds(runner, said, n))
    return Found(tuner.tuning, chunk, layers, ahead, tuple(tuner.choices))
