"""A model over several devices computes what it computes on one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.engine.runner import GpuRunner, HostRunner, PartRunner, Share, prefill
from rwkv_gpu.engine.split import SplitRunner, parts_of
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.cut import layers_of
from tests.golden_files import OWN

EVERY = sorted(path.stem for path in OWN.glob("tiny-*.gguf"))
OPTIONS: dict[str, Any] = {"slots": 2, "context": 128, "kv": "f32", "chunk_size": 16, "look_ahead": 0}
RMS = 1e-5  # float32 sums in another order: other fusions at the cut, or numpy in place of kernels
IDS = list(range(5, 37))
NORMS_OF_SHARED_KEYS = {f"blk.{layer}.attn_{which}_norm.weight" for layer in (2, 3) for which in "qk"}  # Gemma 4


def opened(name: str) -> GGUFFile:
    return GGUFFile.open(OWN / f"{name}.gguf")


@contextmanager
def split(name: str, starts: Sequence[int], adapters: Sequence[Any] = ()) -> Iterator[SplitRunner]:
    """A model on these adapters; None is numpy, as are those that are not given."""
    with opened(name) as file:
        model = load_model(file)

        def maker(adapter: Any) -> Any:
            def make(share: Share) -> PartRunner:
                if adapter is None:
                    return HostRunner(file, model, share=share, **OPTIONS)
                return GpuRunner(Device(adapter), file, model, share=share, **OPTIONS)

            return make

        makers = [maker(adapter) for adapter in adapters or [None] * len(starts)]
        runner = SplitRunner(model, parts_of(model, starts), makers, **OPTIONS)
        try:
            yield runner
        finally:
            runner.close()


def whole_logits(name: str) -> np.ndarray:
    with opened(name) as file:
        return prefill(HostRunner(file, load_model(file), **OPTIONS), IDS, every=True)


def in_three(name: str) -> list[int]:
    """A cut behind the first layer and before the last one."""
    with opened(name) as file:
        return sorted({0, 1, layers_of(load_model(file)) - 1})


@pytest.mark.parametrize("name", EVERY)
def test_parts_in_numpy_give_the_logits_of_the_whole_bit_by_bit(name):
    with split(name, in_three(name)) as runner:
        assert np.array_equal(prefill(runner, IDS, every=True), whole_logits(name))


@pytest.mark.parametrize("name", EVERY)
def test_a_part_has_what_its_layers_use_and_all_parts_have_the_whole(name):
    with opened(name) as file:
        model = load_model(file)
    parts = parts_of(model, in_three(name))
    for what in ("weights", "states", "caches"):
        assert {one for part in parts for one in getattr(part, what)} == set(getattr(model, what))
    for part in parts:
        blocks = {weight.name: weight.name.split(".")[1] for weight in part.weights if weight.name.startswith("blk.")}
        others = {name for name, layer in blocks.items() if int(layer) not in part.layers}
        assert others <= NORMS_OF_SHARED_KEYS
    assert all(len(part.weights) < len(model.weights) for part in parts)


@pytest.mark.parametrize(("name", "starts"), [("tiny-llama", [0, 1]), ("tiny-granitehybrid", [0, 2])])
def test_a_gpu_and_numpy_give_the_logits_of_one_device(name, starts, adapter):
    with split(name, starts, [adapter, None]) as runner:
        assert np.sqrt(np.mean((prefill(runner, IDS, every=True) - whole_logits(name)) ** 2)) < RMS


def test_two_gpus_give_the_logits_of_one_device(adapter):
    with split("tiny-rwkv7", [0, 1], [adapter, adapter]) as runner:
        assert np.sqrt(np.mean((prefill(runner, IDS, every=True) - whole_logits("tiny-rwkv7")) ** 2)) < RMS
