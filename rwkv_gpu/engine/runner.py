"""A model that can take steps: its parameters, the states of its sequences, and plans by size. Knows no text."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..gpu.device import Buffer, Device
from ..gpu.loader import Progress, host_weights, load_weights
from ..gpu.plan import Plan, Slice
from ..gpu.tuning import Tuning
from ..models.registry import Model
from ..ops.batch import Batch
from ..ops.recorder import Recorder
from ..ops.recording import MAX_SEGMENTS, Scratch
from ..ops.reference import Reference
from ..ops.self_test import tuning_for
from .parameters import parameters_of

Logits = npt.NDArray[np.float32]
StateArrays = Mapping[str, npt.NDArray[np.float32]]


class Runner(Protocol):
    """Takes steps on a GPU or in numpy."""

    slots: int  # sequences that it has room for
    chunk_size: int  # rows that a step may have

    def step(self, batch: Batch) -> Logits:
        """The logits of the rows that the batch asks for, [R, V]; the states move on."""

    def read_state(self, slot: int) -> StateArrays:
        """A sequence's states, by name."""

    def write_state(self, slot: int, states: StateArrays) -> None:
        """Puts a sequence where `read_state` was taken."""

    def copy_state(self, source: int, target: int) -> None:
        """One slot becomes what another is."""

    def close(self) -> None:
        """Gives back all memory."""


class GpuRunner:
    """Steps by recorded plans, one for each power of two of rows."""

    def __init__(
        self,
        device: Device,
        file: GGUFFile,
        model: Model,
        *,
        slots: int = 1,
        chunk_size: int = 512,
        tuning: Tuning | None = None,
        layers_per_submit: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.device = device
        self.model = model
        self.slots = slots
        self.chunk_size = chunk_size
        self.layers_per_submit = layers_per_submit
        self.tuning = tuning or tuning_for(device)
        self.weights = load_weights(device, file, parameters_of(file, model), progress)
        self._states: dict[str, Buffer] = {}
        for state in model.states:
            self._states[state.name] = device.buffer(slots * 4 * int(np.prod(state.shape)), "state")
        self._scratch = Scratch(device)
        self._plans: dict[tuple[int, int], Plan] = {}

    def step(self, batch: Batch) -> Logits:
        plan = self.plan_for(batch)
        plan.run(batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs), self.layers_per_submit)
        return plan.read("logits", len(batch.outputs))

    def plan_for(self, batch: Batch) -> Plan:
        """The smallest plan that takes the batch, recorded at its first use."""
        rows = bucket(batch.rows, self.chunk_size)
        outputs = bucket(len(batch.outputs), rows)
        plan = self._plans.get((rows, outputs))
        if plan is None:
            plan = self._plans[rows, outputs] = self._record(rows, outputs)
        return plan

    def _record(self, rows: int, outputs: int) -> Plan:
        states = {name: Slice(buffer, 0, buffer.nbytes) for name, buffer in self._states.items()}
        recorder = Recorder(
            self.device,
            self.weights,
            rows,
            self._scratch,
            self.tuning,
            states,
            max_segments=min(rows, self.slots, MAX_SEGMENTS),
            max_outputs=outputs,
        )
        ids = recorder.input("ids", np.uint32, (rows,))
        return recorder.finish({"logits": self.model.forward(recorder, ids)})

    def read_state(self, slot: int) -> StateArrays:
        arrays = {}
        for state in self.model.states:
            nbytes = 4 * int(np.prod(state.shape))
            data = self.device.read(self._states[state.name], nbytes, slot * nbytes)
            arrays[state.name] = np.frombuffer(data, np.float32).reshape(state.shape)
        return arrays

    def write_state(self, slot: int, states: StateArrays) -> None:
        for state in self.model.states:
            array = states[state.name].astype(np.float32)
            self.device.write(self._states[state.name], array, slot * array.nbytes)

    def copy_state(self, source: int, target: int) -> None:
        for state in self.model.states:
            nbytes = 4 * int(np.prod(state.shape))
            buffer = self._states[state.name]
            self.device.copy(buffer, source * nbytes, buffer, target * nbytes, nbytes)

    def close(self) -> None:
        self.device.close()


class HostRunner:
    """Steps in numpy: the same model through the reference interpreter."""

    def __init__(self, file: GGUFFile, model: Model, *, slots: int = 1, chunk_size: int = 512) -> None:
        self.model = model
        self.slots = slots
        self.chunk_size = chunk_size
        self._weights: Mapping[str, npt.NDArray[Any]] = host_weights(file, parameters_of(file, model))
        self._states = {state.name: np.zeros((slots, *state.shape), np.float32) for state in model.states}

    def step(self, batch: Batch) -> Logits:
        logits: Logits = self.model.forward(Reference(self._weights, self._states, batch), batch.ids)
        return logits

    def read_state(self, slot: int) -> StateArrays:
        return {name: array[slot].copy() for name, array in self._states.items()}

    def write_state(self, slot: int, states: StateArrays) -> None:
        for name, array in self._states.items():
            array[slot] = states[name]

    def copy_state(self, source: int, target: int) -> None:
        for array in self._states.values():
            array[target] = array[source]

    def close(self) -> None:
        self._weights, self._states = {}, {}


def bucket(count: int, most: int) -> int:
    """The power of two that `count` fits in, but never more than `most`."""
    return min(most, 1 << max(0, count - 1).bit_length())


def prefill(
    runner: Runner,
    ids: Sequence[int],
    *,
    slot: int = 0,
    start: int = 0,
    chunk_size: int | None = None,
    every: bool = False,
) -> Logits:
    """Feeds a sequence in chunks: the logits after its last token, or of every position. [R, V]"""
    size = min(chunk_size or runner.chunk_size, runner.chunk_size)
    logits = []
    for at in range(0, len(ids), size):
        piece = runner.step(Batch.of([(slot, start + at, ids[at : at + size])], every=every))
        if every or at + size >= len(ids):
            logits.append(piece)
    return np.concatenate(logits)
