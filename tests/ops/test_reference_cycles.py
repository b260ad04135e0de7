"""A recorded plan leaves no reference cycle, so its inputs are freed at once, without the garbage collector."""

import gc
import itertools

import pytest

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.ops.graph import Graph, Node
from rwkv_gpu.ops.lowering.context import Lowering
from rwkv_gpu.ops.recorder import Recorder
from tests.golden_files import GENERATIVE, OWN
from tests.test_own_golden import IN_NUMPY  # models that recombine the parts of others

STEPS = (Step(1), Step(64, prefill=True))
CASES = list(zip(sorted({*GENERATIVE} - {*IN_NUMPY}), itertools.cycle(STEPS), strict=False))  # a family has several


@pytest.mark.long
@pytest.mark.parametrize(("name", "step"), CASES)
def test_recording_a_model_leaves_nothing_to_the_collector(name, step):
    """Otherwise, a closed model would keep its weights and its device: 100 MB on a software GPU."""
    gc.collect()
    gc.disable()
    try:
        with GGUFFile.open(OWN / f"{name}.gguf") as file:
            record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), step)
        assert not [one for one in gc.get_objects() if type(one) in (Lowering, Recorder, Graph, Node)]
    finally:
        gc.enable()
