"""An exported model in Chromium equals Python: logits, greedy tokens, and seeded samples."""

import json

import numpy as np
import pytest

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.export.files import export_plan
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_generator
from tests.export.browser import needs_chromium, run_in_browser
from tests.export.following import FAMILIES, followed, prompt_of
from tests.golden_files import golden

# Chromium's software adapter has subgroups of 4 lanes; two models also run the plans for devices without.
MODELS = (("builtin", 4), *((f"tiny-{family}", 4) for family in FAMILIES), ("tiny-rwkv7", 0), ("tiny-gemma3", 0))
STEPS = 65  # tokens: one after the prompt, and those of 64 decode steps
PARAMS = (
    SamplingParams(temperature=0.8, seed=7),
    SamplingParams(temperature=1.2, top_k=20, top_p=0.9, min_p=0.02, seed=(3 << 32) + 5),
)
SCRIPT = """
import { Engine } from "./engine.js";
export default async function () {
  const { prompt, params, steps } = await (await fetch("case.json")).json();
  const manifest = await (await fetch("model.json")).json();
  const shard = async (index) => new Uint8Array(await (await fetch(manifest.shards[index].file)).arrayBuffer());
  const engine = await Engine.open(manifest, shard);
  const [logits, tokens, sampled] = [[], [], []];
  let token = await engine.feed(prompt, { temperature: 0 });
  for (let step = 0; step < steps; step++) {
    logits.push([...(await engine.logits())]);
    tokens.push(token);
    if (step + 1 < steps) token = await engine.feed([token], { temperature: 0 });
  }
  for (const one of [{ temperature: 0 }, ...params]) {
    engine.reset();
    const ids = [];
    for await (const id of engine.generate(prompt, { ...one, seed: BigInt(one.seed ?? 0) }, steps)) ids.push(id);
    sampled.push(ids);
  }
  return { logits, tokens, ahead: sampled[0], sampled: sampled.slice(1), subgroup: engine.variant.subgroup };
}
"""


@needs_chromium
@pytest.mark.long
@pytest.mark.timeout(1800)  # the browser compiles kernels for software, which takes minutes on a busy machine
@pytest.mark.parametrize(("name", "subgroup"), MODELS)
def test_logits_and_tokens_equal_those_of_python(name, subgroup, tmp_path, adapter):
    path = builtin_model() if name == "builtin" else golden(f"{name}.gguf")
    with GGUFFile.open(path) as file:
        manifest = export_plan(file, tmp_path, "0" * 64)
        prompt = prompt_of(manifest["model"]["vocabulary"])
        runner = GpuRunner(Device(adapter, portable=True), file, load_generator(file))
        logits, tokens = followed(runner, prompt, SamplingParams(temperature=0), STEPS)
        sampled = [followed(runner, prompt, params, STEPS)[1] for params in PARAMS]
        runner.close()
    given = [
        {"temperature": one.temperature, "topK": one.top_k, "topP": one.top_p, "minP": one.min_p, "seed": str(one.seed)}
        for one in PARAMS
    ]
    if not subgroup:
        (tmp_path / "model.json").write_text(json.dumps({**manifest, "variants": manifest["variants"][-1:]}))
    (tmp_path / "case.json").write_text(json.dumps({"prompt": prompt, "params": given, "steps": STEPS}))
    found = run_in_browser(tmp_path, SCRIPT)
    assert found["subgroup"] == subgroup
    difference = np.array(found["logits"], np.float32) - logits
    rms = float(np.sqrt((difference.astype(np.float64) ** 2).mean()) / max(1.0, float(logits.std())))
    assert rms < 1e-4
    assert found["tokens"] == tokens
    assert found["ahead"] == tokens
    assert found["sampled"] == sampled
