"""A model that is split over several devices gives the same results as on one."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.engine.device_sampling import draw_row
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.runner import PartRunner, Share, prefill
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.split import SplitRunner, SplitStep, parts_of
from rwkv_gpu.engine.split_layout import shares_of
from rwkv_gpu.engine.step_result import CompletedStep, SamplingInputs
from rwkv_gpu.errors import BadInput, DeviceError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu import native
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.models.transformer import Transformer
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.cut import layers_of
from rwkv_gpu.ops.sampling import DRAW, FROM_SLOT, NO_TOKEN, Reason
from tests.cases import each
from tests.golden_files import GENERATIVE, OWN

EVERY = GENERATIVE
OPTIONS: dict[str, Any] = {"slots": 2, "context": 128, "kv": "f32", "chunk_size": 16, "look_ahead": 0}
RMS = 1e-5  # float32 sums in another order: other fusions at the cut, or numpy instead of kernels
IDS = list(range(5, 37))
NORMS_OF_SHARED_KEYS = {f"blk.{layer}.attn_{which}_norm.weight" for layer in (2, 3) for which in "qk"}  # Gemma 4


def opened(name: str) -> GGUFFile:
    return GGUFFile.open(OWN / f"{name}.gguf")


@contextmanager
def split(name: str, starts: Sequence[int], adapters: Sequence[Any] = (), look_ahead: int = 0) -> Iterator[SplitRunner]:
    """Loads a model on these adapters. None is numpy, which is also the default."""
    options = {**OPTIONS, "look_ahead": look_ahead}
    with opened(name) as file:
        model = load_model(file)

        def maker(adapter: Any) -> Any:
            def make(share: Share) -> PartRunner:
                if adapter is None:
                    return HostRunner(file, model, share=share, **options)
                return GpuRunner(Device(adapter), file, model, share=share, **options)

            return make

        makers = [maker(adapter) for adapter in adapters or [None] * len(starts)]
        runner = SplitRunner(model, parts_of(model, starts), makers, **options)
        try:
            yield runner
        finally:
            runner.close()


def whole_logits(name: str) -> np.ndarray:
    with opened(name) as file:
        return prefill(HostRunner(file, load_model(file), **OPTIONS), IDS, every=True)


def in_three(name: str) -> list[int]:
    """Returns a split after the first layer and before the last one."""
    with opened(name) as file:
        return sorted({0, 1, layers_of(load_model(file)) - 1})


@pytest.mark.long
@each("name", EVERY)
def test_parts_in_numpy_give_the_logits_of_the_whole_bit_by_bit(name):
    with split(name, in_three(name)) as runner:
        assert np.array_equal(prefill(runner, IDS, every=True), whole_logits(name))


def block_of(model: Any, layer: int) -> int:
    """Returns the block of the file that a layer reads: some models run blocks several times."""
    runs_again = isinstance(model, Transformer) and len({*model.feeds}) < len(model.feeds)
    return int(model.attentions[layer].q.name.split(".")[1]) if runs_again else layer


@pytest.mark.long
@each("name", EVERY)
def test_a_part_has_the_tensors_of_its_layers_and_all_parts_have_the_whole(name):
    with opened(name) as file:
        model = load_model(file)
    parts = parts_of(model, in_three(name))
    for what in ("weights", "states", "caches"):
        assert {one for part in parts for one in getattr(part, what)} == set(getattr(model, what))
    for part in parts:
        blocks = {weight.name: weight.name.split(".")[1] for weight in part.weights if weight.name.startswith("blk.")}
        own = {block_of(model, layer) for layer in part.layers}
        others = {name for name, layer in blocks.items() if int(layer) not in own}
        assert others <= NORMS_OF_SHARED_KEYS
    assert all(len(part.weights) < len(model.weights) for part in parts)


@pytest.mark.parametrize(("name", "starts"), [("tiny-llama", [0, 1]), ("tiny-granitehybrid", [0, 2])])
def test_a_gpu_and_numpy_give_the_logits_of_one_device(name, starts, adapter):
    with split(name, starts, [adapter, None]) as runner:
        assert np.sqrt(np.mean((prefill(runner, IDS, every=True) - whole_logits(name)) ** 2)) < RMS


def test_two_gpus_give_the_logits_of_one_device(adapter):
    with split("tiny-rwkv7", [0, 1], [adapter, adapter]) as runner:
        assert np.sqrt(np.mean((prefill(runner, IDS, every=True) - whole_logits("tiny-rwkv7")) ** 2)) < RMS


def decoded(runner: Any, steps: int, ahead: int) -> list[int]:
    """Returns greedy tokens of two sequences in turn, with `ahead` steps submitted before a token is known."""
    first = [(0, 0, IDS[:9]), (1, 0, IDS[:7])]
    lengths, flights, found = [9, 7], deque[Any](), []
    draws = SamplingInputs.of(np.array([draw_row(SamplingParams(temperature=0.0), 0, slot) for slot in (0, 1)], DRAW))
    for number in range(steps):
        rows = [(slot, lengths[slot] + number - 1, [FROM_SLOT | slot]) for slot in (0, 1)] if number else first
        flights.append(runner.submit(runner.prepare(Batch.of(rows)), draws))
        while len(flights) > (ahead if number + 1 < steps else 0):
            found += [row.sampled().token for row in flights.popleft().wait().rows]
    return found


@pytest.mark.parametrize("name", ["tiny-rwkv7", "tiny-llama", "tiny-granitehybrid"])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_steps_submitted_ahead_sample_the_same_tokens(name, ahead):
    with opened(name) as file:
        wanted = decoded(HostRunner(file, load_model(file), **OPTIONS), 6, 0)
    with split(name, in_three(name), look_ahead=2) as runner:
        assert decoded(runner, 6, ahead) == wanted


def test_two_gpus_decode_ahead_as_one(adapter):
    with opened("tiny-rwkv7") as file:
        wanted = decoded(HostRunner(file, load_model(file), **OPTIONS), 5, 0)
    with split("tiny-rwkv7", [0, 1], [adapter, adapter], look_ahead=1) as runner:
        assert runner.ahead == 1
        assert decoded(runner, 5, 1) == wanted


class Log(HostRunner):
    """A part in numpy that records its calls, and may fail."""

    asynchronous = True
    events: list[tuple[Any, ...]]
    refuses = False

    def ready(self, batch: Batch, sampling: Any) -> Any:
        assert self._part is not None
        self.events.append((f"ready {self._part.number}", batch.segments[0].start))
        return super().ready(batch, sampling)

    def forward(self, batch: Batch, arrived: Any) -> Any:
        if self.refuses:
            raise DeviceError("refused")
        self.events.append(("first", batch.segments[0].start))
        return super().forward(batch, arrived)

    def submit(self, batch: Batch, sampling: Any, arrived: Any = MappingProxyType({})) -> Any:
        self.events.append(("last", batch.segments[0].start))
        return super().submit(batch, sampling, arrived)


@pytest.fixture
def logged() -> Iterator[tuple[SplitRunner, list[tuple[Any, ...]]]]:
    events: list[tuple[Any, ...]] = []
    with opened("tiny-llama") as file:
        model, options = load_model(file), {**OPTIONS, "look_ahead": 1}

        def make(share: Share) -> PartRunner:
            part = Log(file, model, share=share, **options)
            part.events = events
            return part

        runner = SplitRunner(model, parts_of(model, [0, 1]), [make, make], **options)
        yield runner, events
        runner.close()


def begun(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Returns the parts and steps in the order in which they began."""
    return [event for event in events if not event[0].startswith("ready")]


def ask(runner: SplitRunner, start: int, ids: list[int]) -> Any:
    draws = SamplingInputs.of(np.array([draw_row(SamplingParams(temperature=0.0), 0, 0)], DRAW))
    return runner.submit(runner.prepare(Batch.of([(0, start, ids)])), draws)


def test_the_first_device_starts_a_chunk_before_the_last_one_ends_the_previous_chunk(logged):
    runner, events = logged
    steps = [ask(runner, at, IDS[at : at + 8]) for at in (0, 8)]
    assert begun(events) == [("first", 0), ("first", 8)]
    for step in steps:
        step.wait()
    assert begun(events)[2:] == [("last", 0), ("last", 8)]


def test_a_step_begins_as_soon_as_the_previous_token_is_known_and_before_it_is_delivered(logged):
    runner, events = logged
    first, second = ask(runner, 0, IDS), ask(runner, len(IDS), [FROM_SLOT])
    assert begun(events) == [("first", 0)]
    first.wait()
    assert begun(events)[1:] == [("last", 0), ("first", len(IDS))]
    second.wait()


def test_each_device_prepares_a_step_before_the_previous_result_is_known(logged):
    runner, events = logged
    first, second = ask(runner, 0, IDS), ask(runner, len(IDS), [FROM_SLOT])
    next_step = len(IDS)
    assert events == [("ready 0", 0), ("first", 0), ("ready 0", next_step)]
    first.wait()
    assert events[3:] == [("ready 1", 0), ("last", 0), ("ready 1", next_step), ("first", next_step)]
    second.wait()
    assert events[7:] == [("last", next_step)]


@pytest.mark.parametrize("name", ["tiny-rwkv7", "tiny-qwen3moe"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_between_a_result_and_the_next_submit_nothing_is_encoded(name, ahead, adapter, monkeypatch):
    events: list[str] = []

    def noted(owner: Any, what: str) -> None:
        before = getattr(owner, what)
        monkeypatch.setattr(owner, what, lambda *args, **more: (before(*args, **more), events.append(what))[0])

    with split(name, [0, 1], [adapter, adapter], look_ahead=1) as runner:
        ask(runner, 0, IDS[:8]).wait()
        ask(runner, 8, [FROM_SLOT]).wait()  # another plan than that of the prompt
        for owner, what in ((native, "record"), (native, "submit"), (native.ResultBuffer, "take")):
            noted(owner, what)
        flights = deque[Any]()
        for at in range(9, 15):
            flights.append(ask(runner, at, [FROM_SLOT]))
            while len(flights) > (ahead if at < 14 else 0):
                flights.popleft().wait()
    begin = events.index("take")
    while "take" in events[begin + 1 :]:
        submit = events.index("submit", begin)
        assert events[begin:submit] == ["take"]
        begin = events.index("take", submit)
    assert events.count("take") == 12


def test_commands_that_were_encoded_for_another_step_are_not_submitted(adapter):
    with opened("tiny-rwkv7") as file:
        wanted = decoded(HostRunner(file, load_model(file), **OPTIONS), 5, 0)
    with split("tiny-rwkv7", [0, 1], [adapter, adapter], look_ahead=1) as runner:
        assert decoded(runner, 5, 1) == wanted
        for slot in (0, 1):
            runner.store.forget(slot)
        prefill(runner, IDS)  # steps of more rows, whose logits are read
        runner.store.forget(0)
        assert decoded(runner, 5, 0) == wanted


def test_operations_that_read_a_sequence_wait_for_its_steps(logged):
    runner, events = logged
    ask(runner, 0, IDS), ask(runner, len(IDS), [FROM_SLOT])
    ahead = runner.read_state(0)
    assert [what for what, _ in begun(events)] == ["first", "last", "first", "last"]
    runner.store.forget(0)
    token = ask(runner, 0, IDS).wait().rows[0].token
    ask(runner, len(IDS), [token]).wait()
    alone = runner.read_state(0)
    assert all(np.array_equal(ahead[name], alone[name]) for name in alone)


def test_the_error_of_a_step_is_raised_where_its_result_is_awaited(logged):
    runner, _ = logged
    first, second = ask(runner, 0, IDS), ask(runner, len(IDS), [FROM_SLOT])
    runner.parts[0].refuses = True  # type: ignore[attr-defined]
    assert first.wait().rows
    with pytest.raises(DeviceError, match="refused"):
        second.wait()


def test_pages_are_copied_after_the_steps_in_flight_have_written_them_in_every_part(logged):
    runner, events = logged
    ask(runner, 0, IDS)
    prefix = runner.store.keep(0, len(IDS))
    assert prefix is not None
    runner.store.adopt(1, prefix, len(IDS))
    assert ("last", 0) not in events
    draws = SamplingInputs.of(np.array([draw_row(SamplingParams(temperature=0.0), 0, 1)], DRAW))
    runner.submit(runner.prepare(Batch.of([(1, len(IDS), [7])])), draws)  # writes a page that both sequences share
    forked = runner.read_state(1)
    runner.store.release(prefix)
    runner.store.forget(0), runner.store.forget(1)
    ask(runner, 0, IDS), ask(runner, len(IDS), [7])
    alone = runner.read_state(0)
    assert all(np.array_equal(forked[name], alone[name]) for name in alone)


def test_a_token_that_could_not_be_sampled_is_not_fed_to_the_step_ahead(logged, monkeypatch):
    """The token has no row in the embedding. It would also end the other sequences of its step."""
    runner, _ = logged
    last, submit = runner.parts[-1], runner.parts[-1].submit

    def none_possible(*given: Any) -> Any:
        monkeypatch.setattr(last, "submit", submit)
        result = submit(*given).wait()
        rows = [row._replace(token=NO_TOKEN, reason=Reason.BAD_NUMBERS) for row in result.rows]
        return CompletedStep(result._replace(rows=rows))

    monkeypatch.setattr(last, "submit", none_possible)
    first, second = ask(runner, 0, IDS), ask(runner, len(IDS), [FROM_SLOT])
    assert first.wait().rows[0].token == NO_TOKEN
    assert second.wait().rows[0].token < runner.vocabulary


def test_the_prepared_parts_of_a_failed_step_are_discarded():
    step, discarded = SplitStep.__new__(SplitStep), []
    step.ready = {number: SimpleNamespace(discard=lambda number=number: discarded.append(number)) for number in (0, 1)}
    step.result = None
    step.fail(DeviceError("refused"))
    assert (discarded, step.ready) == ([0, 1], {})
    with pytest.raises(DeviceError, match="refused"):
        step.wait()


def test_a_closed_runner_has_closed_its_parts_and_keeps_none():
    with split("tiny-llama", [0, 1], look_ahead=2) as runner:
        parts = [*runner.parts]
        assert all(part._weights for part in parts)
        runner.close()
        assert not runner.parts and not any(part._weights for part in parts)


def test_shares_of_devices_are_numbers_above_zero():
    assert shares_of("3, 1", 2) == [3, 1]
    for wrong in ("0,1", "1,-1", "1,nan", "1,inf", "1,a", ""):
        with pytest.raises(BadInput, match="a number above 0 for each device"):
            shares_of(wrong, 2)
