"""A model that can take steps: its parameters, the states of its sequences, and plans by size. Knows no text."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

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
from .caches import GpuCaches, HostCaches, Paged
from .fit import held
from .parameters import parameters_of
from .places import Places
from .room import DEFAULT_CACHE, Kind, Room, check_bindings
from .states import StatePages

Logits = npt.NDArray[np.float32]
Output = Literal["logits", "hidden"]
StateArrays = Mapping[str, npt.NDArray[np.float32]]


class Runner(Protocol):
    """Takes steps on a GPU or in numpy."""

    vocabulary: int  # token ids that it knows
    slots: int  # sequences that it has room for
    chunk_size: int  # rows that a step may have
    context: int | None  # positions that a sequence may have, where there is a limit
    room: Room
    places: Places

    def step(self, batch: Batch) -> Logits:
        """The logits of the rows that the batch asks for, [R, V]; the states move on."""

    def hidden(self, batch: Batch) -> Logits:
        """The same, but what the head would make logits of, [R, D]"""

    def read_state(self, slot: int) -> StateArrays:
        """What a sequence has come to, by name."""

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        """Puts a sequence where `read_state` was taken."""

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
        context: int | None = None,
        kv: Kind = "f16",
        tokens: int | None = None,
        cache_bytes: int = DEFAULT_CACHE,
    ) -> None:
        self.room = room = Room.of(model, context, slots, kv, tokens=tokens, cache_bytes=cache_bytes)
        check_bindings(device, model, room)
        parameters = parameters_of(file, model)
        held(device, parameters, model, room).check()  # before anything is allocated
        self.device = device
        self.model = model
        self.vocabulary = model.vocabulary
        self.slots = slots
        self.chunk_size = chunk_size
        self.layers_per_submit = layers_per_submit
        self.tuning = tuning or tuning_for(device)
        self.weights = load_weights(device, file, parameters, progress)
        self._states: dict[str, Buffer] = {}
        for state in model.states:
            self._states[state.name] = device.buffer(room.state_bytes(state), "state")
        self._caches = GpuCaches(device, model.caches, room)
        self.places = places_of(model, room, self._caches)
        self.context = room.context if model.caches else None
        self._scratch = Scratch(device)
        self._plans: dict[tuple[int, int, bool, int, Output], Plan] = {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch with a place for all that it writes; what a plan can run."""
        return self.places.prepare(batch)

    def step(self, batch: Batch) -> Logits:
        return self._run(batch, "logits")

    def hidden(self, batch: Batch) -> Logits:
        return self._run(batch, "hidden")

    def _run(self, batch: Batch, what: Output) -> Logits:
        batch = self.prepare(batch)
        plan = self.plan_for(batch, what)
        plan.run(batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs), self.layers_per_submit)
        if not batch.outputs:
            return np.zeros((0, self.vocabulary), np.float32)
        return plan.read(what, len(batch.outputs))

    def plan_for(self, batch: Batch, what: Output = "logits") -> Plan:
        """The smallest plan that takes the batch, recorded at its first use."""
        rows = bucket(batch.rows, self.chunk_size)
        outputs = bucket(len(batch.outputs), rows)
        attends = bool(self.model.caches)
        key = rows, outputs, attends and batch.single, self._caches.plan_pages(batch) if attends else 0, what
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._record(*key)
        return plan

    def _record(self, rows: int, outputs: int, single: bool, pages: int, what: Output) -> Plan:
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
            caches=self._caches.placed(pages),
            single=single,
        )
        ids = recorder.input("ids", np.uint32, (rows,))
        function = self.model.hidden if what == "hidden" else self.model.forward
        return recorder.finish({what: function(recorder, ids)})

    def read_state(self, slot: int) -> StateArrays:
        arrays = {}
        for state in self.model.states:
            nbytes = 4 * int(np.prod(state.shape))
            data = self.device.read(self._states[state.name], nbytes, self.places.state(slot) * nbytes)
            arrays[state.name] = np.frombuffer(data, np.float32).reshape(state.shape)
        return arrays | self._caches.read(slot)

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        self.places.begin(slot, length)
        for state in self.model.states:
            array = states[state.name].astype(np.float32)
            self.device.write(self._states[state.name], array, self.places.state(slot) * array.nbytes)
        self._caches.write(slot, states)

    def close(self) -> None:
        self.device.close()


class HostRunner:
    """Steps in numpy: the same model through the reference interpreter."""

    def __init__(
        self,
        file: GGUFFile,
        model: Model,
        *,
        slots: int = 1,
        chunk_size: int = 512,
        context: int | None = None,
        kv: Kind = "f16",
        tokens: int | None = None,
        cache_bytes: int = DEFAULT_CACHE,
    ) -> None:
        self.room = room = Room.of(model, context, slots, kv, tokens=tokens, cache_bytes=cache_bytes)
        self.model = model
        self.vocabulary = model.vocabulary
        self.slots = slots
        self.chunk_size = chunk_size
        self._weights: Mapping[str, npt.NDArray[Any]] = host_weights(file, parameters_of(file, model))
        self._states = {state.name: np.zeros((room.states, *state.shape), np.float32) for state in model.states}
        self._caches = HostCaches(model.caches, room)
        self.places = places_of(model, room, self._caches)
        self.context = room.context if model.caches else None

    def step(self, batch: Batch) -> Logits:
        logits: Logits = self.model.forward(*self._reference(batch))
        return logits

    def hidden(self, batch: Batch) -> Logits:
        rows: Logits = self.model.hidden(*self._reference(batch))
        return rows

    def _reference(self, batch: Batch) -> tuple[Reference, npt.NDArray[Any]]:
        batch = self.places.prepare(batch)
        return Reference(self._weights, self._states, batch, self._caches.arrays), batch.ids

    def read_state(self, slot: int) -> StateArrays:
        arrays = {name: array[self.places.state(slot)].copy() for name, array in self._states.items()}
        return arrays | self._caches.read(slot)

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        self.places.begin(slot, length)
        for name, array in self._states.items():
            array[self.places.state(slot)] = states[name]
        self._caches.write(slot, states)

    def close(self) -> None:
        self._weights, self._states = {}, {}


def places_of(model: Model, room: Room, caches: Paged) -> Places:
    """The pages and states of a model's sequences."""
    states = StatePages(room.states, room.history) if model.states else None
    return Places(caches.pager if model.caches else None, states, caches.copy_pages)


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
