"""GPUs that wait for each other are kept busy while their clocks are low, and not afterwards."""

from collections import Counter

import pytest

from rwkv_gpu.engine.clocks import PAUSE, RAISING, SHARE, TIMING_INTERVAL, Clocks
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.gpu.busy_loop import BusyLoop
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model

from .test_split import OPTIONS, decoded, opened, split


class Counted:
    """A busy loop that counts its calls."""

    def __init__(self) -> None:
        self.calibrated = 0
        self.worked: list[float] = []

    def calibrate(self) -> None:
        self.calibrated += 1

    def work(self, seconds: float) -> None:
        self.worked.append(seconds)


class Decoding:
    """Token times of two devices, on a simulated clock."""

    def __init__(self) -> None:
        self.loops = [Counted(), Counted()]
        self.now = 100.0
        self.clocks = Clocks(self.loops, lambda: self.now)

    def token(self, *seconds: float) -> int:
        """Simulates a token that takes the given times. Returns how many devices were kept busy."""
        before = sum(len(loop.worked) for loop in self.loops)
        self.clocks.token()
        for number, one in enumerate(seconds):
            self.clocks.began(number)
            self.now += one
            self.clocks.ended(number, one)
        return sum(len(loop.worked) for loop in self.loops) - before


@pytest.fixture
def decoding() -> Decoding:
    return Decoding()


def until_raised(decoding: Decoding) -> None:
    end = decoding.now + RAISING + 2 * TIMING_INTERVAL
    while decoding.now < end:
        decoding.token(0.001, 0.002)


def test_after_a_pause_devices_are_kept_busy_for_a_share_of_the_other_device_time(decoding):
    assert decoding.token(0.001, 0.002) == 0  # nothing is known yet
    assert decoding.token(0.001, 0.002) == 2
    assert [loop.worked for loop in decoding.loops] == [[SHARE * 0.002], [SHARE * 0.001]]
    assert [loop.calibrated for loop in decoding.loops] == [1, 1]


def test_devices_with_high_clocks_are_not_kept_busy(decoding):
    until_raised(decoding)
    timed = [loop.calibrated for loop in decoding.loops]
    assert sum(decoding.token(0.001, 0.002) for _ in range(200)) == 0
    assert [loop.calibrated for loop in decoding.loops] == timed


def test_devices_are_kept_busy_for_as_long_as_their_clocks_rise(decoding):
    begin, seconds = decoding.now, 0.02
    decoding.token(0.001, seconds)
    while decoding.now < begin + 4 * RAISING:
        assert decoding.token(0.001, seconds) == 2
        seconds = 0.02 * 0.9 ** ((decoding.now - begin) / TIMING_INTERVAL)
    assert all(loop.calibrated > 4 * RAISING / TIMING_INTERVAL * 0.8 for loop in decoding.loops), (
        "loops are soon over otherwise"
    )
    until_raised(decoding)
    assert decoding.token(0.001, seconds) == 0


def test_if_steps_become_slower_devices_are_kept_busy_until_they_are_fast_again(decoding):
    until_raised(decoding)
    decoding.token(0.001, 0.0025)
    assert decoding.token(0.001, 0.002) == 2
    assert decoding.token(0.001, 0.002) == 0


def test_steps_that_grow_with_the_context_are_no_sign_of_low_clocks(decoding):
    until_raised(decoding)
    assert sum(decoding.token(0.001, 0.002 * 1.001**n) for n in range(500)) == 0


def test_one_slow_token_does_not_cause_a_long_loop(decoding):
    for seconds in (0.002, 0.002, 0.2, 0.002):
        decoding.token(0.001, seconds)
    assert max(decoding.loops[0].worked) == SHARE * 0.002


def test_after_a_pause_loops_are_calibrated_again(decoding):
    until_raised(decoding)
    timed = decoding.loops[0].calibrated
    decoding.now += 2 * PAUSE
    decoding.token(0.001, 0.002)
    assert [loop.calibrated for loop in decoding.loops] == [timed + 1, timed + 1]
    assert decoding.token(0.001, 0.002) == 2


def test_software_devices_and_numpy_are_never_kept_busy(adapter):
    with Device(adapter) as device:
        assert Clocks.of([device, device]) is None
        assert Clocks.of([device, None]) is None


@pytest.mark.parametrize("ahead", [0, 1])
def test_each_part_of_a_step_reports_its_begin_and_its_end(monkeypatch, ahead):
    with split("tiny-granitehybrid", [0, 1, 2], look_ahead=ahead) as runner:
        runner._clocks, called = Clocks([Counted(), Counted(), Counted()]), Counter()
        for name in ("token", "began", "ended"):
            monkeypatch.setattr(runner._clocks, name, lambda *part, name=name: called.update([(name, *part[:1])]))
        decoded(runner, 6, ahead)
    assert called == {("token",): 5, **{(name, part): 5 for name in ("began", "ended") for part in range(3)}}


def test_tokens_are_the_same_while_devices_are_kept_busy(adapter, monkeypatch):
    with opened("tiny-rwkv7") as file:
        wanted = decoded(HostRunner(file, load_model(file), **OPTIONS), 5, 0)
    with split("tiny-rwkv7", [0, 1], [adapter, adapter], look_ahead=1) as runner:
        gpus = [part.device for part in runner.parts if isinstance(part, GpuRunner)]
        worked: list[float] = []
        loops = [BusyLoop(gpu) for gpu in gpus]
        for loop in loops:
            work = loop.work
            monkeypatch.setattr(loop, "work", lambda seconds, work=work: (worked.append(seconds), work(seconds)))
        runner._clocks = Clocks(loops, lambda: 100.0)
        assert decoded(runner, 5, 1) == wanted
    assert len(worked) >= 4
