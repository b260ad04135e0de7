"""The programs that measure kernels run with a minimum of work."""

import pytest
from click.testing import CliRunner

from benchmarks import dispatch, host, linear
from tests.golden_files import OWN

MODEL = OWN / "tiny-rwkv7.gguf"
LEAST = {
    dispatch: "--dispatches 4 --repeats 2",
    host: f"{MODEL} --batches 1 --tokens 12 --rounds 1",
    linear: "--out 64 --width 256 --rows 1 --formats Q4_K --mib 1 --busy 0.001",
}


@pytest.mark.parametrize("program", LEAST, ids=lambda program: program.__name__)
def test_the_benchmark_runs(fast_device, program):
    done = CliRunner().invoke(program.main, ["--device", fast_device.adapter.name, *LEAST[program].split()])
    assert done.exception is None, done.output
    assert fast_device.adapter.name in done.output
