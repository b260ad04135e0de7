"""Runs a model over batches, with the reference and on a device, from the same float parameters."""

from collections.abc import Iterable, Mapping, Sequence

import gguf
import numpy as np

from rwkv_gpu.engine.cache.config import CacheConfig
from rwkv_gpu.engine.cache.kv import GpuKVCache, HostKVCache, PagedKVCache
from rwkv_gpu.engine.cache.store import SequenceStore
from rwkv_gpu.gguf.file import GGUFFile, TensorInfo
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan, Slice
from rwkv_gpu.gpu.weights import Weights, upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.models.registry import Model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.kv_format import KVType
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import Alternating, ComputedWeight, HeadSlice, RowRange, StackedVectors, Weight

Arrays = Mapping[str, np.ndarray]
SLOTS = 4
CONTEXT = 1024  # positions of a sequence in a model with attention


def float_weights(file: GGUFFile, model: Model) -> dict[str, np.ndarray]:
    """Returns every parameter of the model as float32, by the `gguf` package's own dequantisers."""
    return {weight.name: _floats(file, weight) for weight in model.weights}


def tensor_of(file: GGUFFile, weight: Weight) -> TensorInfo:
    if isinstance(weight, RowRange):
        source = file.tensors[weight.source]
        return source.rows(weight.first, source.rows_in(weight.shape))
    return file.tensors[weight.name]


def _floats(file: GGUFFile, weight: Weight) -> np.ndarray:
    if isinstance(weight, StackedVectors):
        return np.concatenate([_floats(file, part).reshape(-1) for part in weight.parts]).reshape(weight.shape)
    if isinstance(weight, ComputedWeight):
        return np.asarray(weight.make(*(_floats(file, part) for part in weight.parts)), np.float32)
    if isinstance(weight, Alternating):
        return np.stack([_floats(file, part) for part in weight.parts], axis=1).reshape(weight.shape)
    if isinstance(weight, HeadSlice):
        rows, whole = weight.rows, _floats(file, weight.parts[0])
        chosen = whole.reshape(rows.heads, rows.each, -1)[:, rows.first : rows.first + rows.count]
        return np.repeat(chosen.reshape(rows.heads * rows.count, -1), rows.repeats, axis=0).reshape(weight.shape)
    tensor = tensor_of(file, weight)
    rows = np.frombuffer(file.read(tensor), np.uint8).reshape(int(np.prod(tensor.shape[:-1])), -1)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(tensor.type))
    return values.astype(np.float32).reshape(weight.shape)


class OnCpu:
    """A model in numpy with slots for some sequences. Slots initially contain NaN."""

    def __init__(self, model: Model, weights: Arrays, kv: KVType = "f32") -> None:
        self.model = model
        self.caches = HostKVCache(model.caches, CacheConfig(CONTEXT, SLOTS, kv))
        self.store = sequence_store(model, self.caches)
        for pages in (pages for both in self.caches.arrays.values() for pages in both):
            pages[:] = np.nan
        self.weights = weights
        self.states = {state.name: np.full((SLOTS, *state.shape), np.nan, np.float32) for state in model.states}

    def step(self, batch: Batch) -> np.ndarray:
        """Returns the logits that the batch requests."""
        batch = self.store.prepare(batch)
        return self.model.forward(Reference(self.weights, self.states, batch, self.caches.arrays), batch.ids)


class OnGpu:
    """A model in one plan on a device. Slots initially contain NaN."""

    def __init__(
        self,
        model: Model,
        weights: Arrays | Weights,
        device: Device,
        rows: int,
        segments: int = SLOTS,
        kv: KVType = "f32",
        tuning: Tuning | None = None,
        single: bool = False,
    ) -> None:
        room = CacheConfig(CONTEXT, SLOTS, kv)
        self.caches = GpuKVCache(device, model.caches, room)
        self.store = sequence_store(model, self.caches)
        placed = self.caches.placed(room.max_pages)
        for buffer in (place.buffer for both in placed.places.values() for place in both):
            device.write(buffer, np.full(buffer.nbytes // 4, 0xFFFFFFFF, np.uint32))
        nan = {state.name: np.full((SLOTS, *state.shape), np.nan, np.float32) for state in model.states}
        buffers = {name: device.upload(array, "states") for name, array in nan.items()}
        recorder = Recorder(
            device,
            weights if isinstance(weights, Weights) else upload_weights(device, weights),
            rows,
            Scratch(device),
            tuning or default_tuning(device.capabilities),
            states={name: Slice(buffer, 0, buffer.nbytes) for name, buffer in buffers.items()},
            max_segments=min(rows, segments),
            max_outputs=rows,
            caches=placed,
            single=single or rows == 1,
        )
        logits = model.forward(recorder, recorder.input("ids", np.uint32, (rows,)))
        self.plan: Plan = recorder.finish({"logits": logits})

    def step(self, batch: Batch) -> np.ndarray:
        """Returns the logits that the batch requests."""
        batch = self.store.prepare(batch)
        self.plan.run(batch.rows, batch.arrays(), len(batch.segments), len(batch.outputs))
        return self.plan.read("logits", len(batch.outputs))


def sequence_store(model: Model, caches: PagedKVCache) -> SequenceStore:
    """Returns a store that allocates pages on demand. A state's place is the number of its sequence."""
    return SequenceStore(caches.pager if model.caches else None, None, caches.copy_pages)


def feed(model: OnCpu | OnGpu, tokens: Sequence[int], chunks: Iterable[int], slot: int = 1) -> np.ndarray:
    """Returns the logits of every token of one sequence, fed in chunks of these sizes."""
    logits, start = [], 0
    for count in chunks:
        logits.append(model.step(Batch.of([(slot, start, tokens[start : start + count])], every=True)))
        start += count
    assert start == len(tokens)
    return np.concatenate(logits)
