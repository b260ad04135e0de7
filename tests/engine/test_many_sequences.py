"""A step can have up to 256 sequences, and each gets the same logits as alone."""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import OWN

SEQUENCES = 200
OPTIONS = {"slots": SEQUENCES, "chunk_size": 256, "context": 64, "kv": "f32"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tiny-rwkv7", "tiny-qwen35"])
def test_a_step_of_many_sequences_equals_numpy(adapter, name):
    """First all sequences decode, then some have prompts of several tokens in the same step."""
    with GGUFFile.open(OWN / f"{name}.gguf") as file, Device(adapter) as device:
        model = load_model(file)
        runners = [HostRunner(file, model, **OPTIONS), GpuRunner(device, file, model, **OPTIONS)]
        ids = np.random.default_rng(0).integers(1, model.vocabulary, (3, SEQUENCES))
        mixed = [(slot, 2, [int(ids[2, slot])] * (2 if slot > 160 else 1)) for slot in range(0, SEQUENCES, 2)]
        steps = [[(slot, at, [int(ids[at, slot])]) for slot in range(SEQUENCES)] for at in range(2)]
        for segments in (*steps, mixed):
            host, gpu = (np.array(runner.run(runner.store.prepare(Batch.of(segments)), "logits")) for runner in runners)
            assert host.shape == gpu.shape == (len(segments), model.vocabulary)
            assert np.sqrt(np.mean((host - gpu) ** 2)) < 1e-3 * host.std()


def test_an_engine_runs_as_many_at_once_as_it_was_loaded_for():
    with GGUFFile.open(OWN / "tiny-rwkv7.gguf") as file:
        engine = Engine(HostRunner(file, load_model(file), **OPTIONS))
    for number in range(SEQUENCES):
        engine.add(Request([number % 7 + 1], SamplingParams(max_tokens=4, temperature=0)))
    running = []
    while engine.busy:
        engine.step()
        running.append(engine.activity.running)
    assert max(running) == SEQUENCES
