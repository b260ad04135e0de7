"""Limits the number of our own functions and files in a decode step, so that a reader can follow it."""

import sys
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from tests.engine.test_engine import TINY, ids_of, small

PACKAGE = str(Path(rwkv_gpu.__file__).parent)
FUNCTIONS, FILES = 90, 18  # maximum calls; comprehensions count, because Python 3.11 implements them as functions
WARM, STEPS = 80, 16  # steps until everything is recorded and measured; steps that are counted


@pytest.mark.parametrize("name", TINY)
def test_a_step_of_decode_runs_few_functions_in_few_files(adapter, name):
    runner = small(name, adapter)
    engine = Engine(runner)
    engine.add(Request(ids_of(4), SamplingParams(temperature=0.8, seed=0, max_tokens=200)))
    for _ in range(WARM):
        engine.step()
    windows = [watched(engine) for _ in range(5)]
    assert engine.activity.running == 1
    engine.close()
    ran = min(windows, key=len)  # excludes work that a step does once, such as binding the buffers of more steps
    listed = "\n".join(f"{file} {function}" for file, function in sorted(ran))
    assert len(ran) < FUNCTIONS, listed
    assert len({file for file, _ in ran}) <= FILES, listed


def watched(engine: Engine) -> set[tuple[str, str]]:
    """Returns the functions of the package that some steps run, with their files."""
    ran: set[tuple[str, str]] = set()

    def watch(frame, event, _arg):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            ran.add((frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname))

    sys.setprofile(watch)
    try:
        for _ in range(STEPS):
            engine.step()
    finally:
        sys.setprofile(None)
    return ran
