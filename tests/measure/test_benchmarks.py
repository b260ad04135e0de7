"""The programs that measure kernels run, at the least that there is to measure."""

import pytest
from click.testing import CliRunner

from benchmarks import adapters, attention, dispatch, linear, sampling, speculation
from tests.golden_files import OWN

LEAST = {
    adapters: f"{OWN / 'tiny-llama.gguf'} --adapters 2 --rank 4 --batch 2 --tokens 2 --passes 1",
    dispatch: "--dispatches 4 --repeats 2",
    linear: "--out 64 --width 256 --rows 1 --formats Q4_K --mib 1 --busy 0.001",
    attention: "--heads 4/2/64 --batch 1 --depths 8 --rounds 1",
    sampling: "--vocabulary 2048 --rows 1 --replays 1",
    speculation: f"{OWN / 'tiny-rwkv7.gguf'} --right 1.0 --drafts 2 -n 4",
}


@pytest.mark.parametrize("program", LEAST, ids=lambda program: program.__name__)
def test_it_runs(fast_device, program):
    done = CliRunner().invoke(program.main, ["--device", fast_device.adapter.name, *LEAST[program].split()])
    assert done.exception is None, done.output
    assert fast_device.adapter.name in done.output
