"""Exported plans run over wgpu without this package: all variants give Python's tokens."""

import pytest

from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.export.files import export_plan
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_generator
from tests.export.browser import decode_only
from tests.export.following import followed, prompt_of
from tests.export.replay import Replayer, manifest
from tests.golden_files import golden

STEPS = 20


@pytest.mark.gpu
def test_a_replayer_written_from_the_documentation_gives_the_tokens_of_python(tmp_path, adapter):
    with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
        written = export_plan(file, tmp_path, "0" * 64)
        prompt = prompt_of(written["model"]["vocabulary"])
        runner = HostRunner(file, load_generator(file))
        expected = [followed(runner, prompt, SamplingParams(temperature=t, seed=5), STEPS)[1] for t in (0, 1)]
        runner.close()
    for variant in decode_only(manifest(tmp_path))["variants"]:
        if variant["subgroup"] > 8:
            continue  # the software adapter has subgroups of 4 to 16 lanes
        for temperature, tokens in enumerate(expected):
            replayer = Replayer(tmp_path, adapter.handle, variant)
            assert replayer.generate(prompt, STEPS, temperature=temperature, seed=5) == tokens, variant["subgroup"]
