"""After warm-up, a model waits for no plan, for any mix of prompts and answers."""

import itertools
import time
from dataclasses import replace

import pytest

import rwkv_gpu
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.plan_sizes import bucket, common_steps, outputs_for
from rwkv_gpu.gpu.plan import Plan
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import OWN


@pytest.mark.parametrize("devices", [["gpu"], ["gpu", "cpu"], ["cpu", "gpu"]], ids="-".join)
def test_a_warm_model_records_nothing_for_requests(adapter, devices):
    """Tested with a whole model and a split one: each part that is on a GPU is warmed up."""
    device = [adapter.index if one == "gpu" else one for one in devices]
    options = {"split": (1, 1)} if device[1:] else {}
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device=device, sequences=2, chunk_size=4, **options) as llm:
        llm.begin_work(Engine.warm_up).result()
        engine = llm._driver._engine
        before = engine.compile_seconds
        prompts = ["hello world", "a", "the sea is wide and"]
        assert llm.generate_batch(prompts, max_tokens=5, temperature=0.9, top_p=0.9, seed=1)
        assert llm.generate_batch(prompts[::-1], max_tokens=5, temperature=0.9, seed=1)
        assert llm.generate_batch(prompts, max_tokens=5, temperature=0.9, seed=1, regex="[a-z ]{3,9}")
        assert engine.compile_seconds == before > 0


@pytest.mark.parametrize(("sequences", "rows"), [(1, 512), (2, 4), (8, 8), (16, 8), (12, 100), (64, 512), (100, 256)])
def test_the_common_steps_have_all_sizes_of_plans(sequences, rows):
    """Batches contain any mix of prompts and answers."""

    def plan(count: int, outputs: int) -> tuple[int, int]:
        size = bucket(count, rows)
        return size, outputs_for(size, bucket(outputs, size), sequences)

    warm = {(plan(step.rows, len(step.outputs)), step.single) for step in common_steps(sequences, rows)}
    for count, outputs in itertools.product(range(1, rows + 1), range(1, min(sequences, rows) + 1)):
        if outputs <= count:
            assert (plan(count, outputs), outputs == count) in warm
    assert len(warm) <= 10 + 2 * 10 + 10


def test_requests_interrupt_the_warm_up():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=2) as llm:
        engine, pieces = llm._driver._engine, []

        def slowly():
            while len(pieces) < 100:
                pieces.append(engine.busy)
                yield

        engine._runner.warm_up = slowly
        answer = llm.stream("hello", max_tokens=50)
        done = llm.begin_work(Engine.warm_up)
        assert len(answer.wait().tokens) == 50
        done.result()
    assert pieces.count(True) <= 1, "only the first piece may begin while a request runs"


def test_a_runner_follows_its_device_at_the_next_prompt(adapter):
    """Kernels that a trial allows in the meantime are used from then on, with the same answers."""
    with rwkv_gpu.load(OWN / "tiny-qwen3.gguf", device=adapter.index, sequences=1, chunk_size=16) as llm:
        runner = llm._driver._engine._runner
        before = llm.generate("the sea", max_tokens=6, temperature=0).text
        recorded = dict(runner._plans)
        allowed = replace(runner.device.capabilities, integer_dot=False)
        runner.device.pending = lambda: allowed if ended else None
        ended = False
        runner.plan_for(Batch.of([(0, 0, [1, 2])]))
        assert recorded.items() <= runner._plans.items()
        ended = True
        runner.plan_for(Batch.of([(0, 0, [1])]))  # a step of decode
        assert recorded.items() <= runner._plans.items()
        assert llm.generate("the sea", max_tokens=6, temperature=0).text == before
        assert runner.device.capabilities is allowed and runner.device.pending is None
        assert not set(recorded.values()) & set(runner._plans.values())


def test_a_plan_is_compiled_before_its_first_step_and_the_request_is_not_charged_for_that_time(adapter, monkeypatch):
    """Drivers may compile a kernel when it is dispatched first, which takes seconds."""
    compiled, compile_plan = [], Plan.compile

    def compile_slowly(plan):
        compile_plan(plan)
        compiled.append(plan)
        time.sleep(0.2)

    monkeypatch.setattr(Plan, "compile", compile_slowly)
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device=adapter.index, sequences=1, chunk_size=4) as llm:
        engine = llm._driver._engine
        before = engine.compile_seconds
        llm.generate("hello", max_tokens=5)
        first = len(compiled)
        assert engine.compile_seconds - before >= 0.2 * first > 0
        llm.generate("hello", max_tokens=5)
        assert len(compiled) == first
