"""An exported model in Chromium computes what Python computes: logits, and greedy tokens."""

import json
import shutil

import numpy as np

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.export.files import export_plan
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_generator
from rwkv_gpu.ops.batch import Batch
from tests.export.browser import needs_chromium, run_in_browser
from tests.golden_files import golden

MODELS = ("tiny-rwkv7", "tiny-llama")
STEPS = 6
SCRIPT = """
import { Engine } from "./engine.js";
export default async function () {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const cases = await (await fetch("cases.json")).json();
  const found = {};
  for (const [name, prompt] of Object.entries(cases)) {
    const read = async (file) => fetch(`${name}/${file}`);
    const manifest = await (await read("model.json")).json();
    const shard = async (index) => new Uint8Array(await (await read(manifest.shards[index].file)).arrayBuffer());
    const engine = await Engine.open(manifest, shard, { device });
    const [logits, tokens] = [[], []];
    let token = await engine.feed(prompt, { temperature: 0 });
    for (let step = 0; step < STEPS; step++) {
      logits.push([...(await engine.logits())]);
      tokens.push(token);
      token = await engine.feed([token], { temperature: 0 });
    }
    const ahead = [];
    engine.reset();
    for await (const one of engine.generate(prompt, { temperature: 0 }, STEPS)) ahead.push(one);
    found[name] = { logits, tokens, ahead };
  }
  return found;
}
"""


def prompt_of(vocabulary: int) -> list[int]:
    """Twenty tokens: a prompt with padding in its plan."""
    return [(7 * n * n + 3) % vocabulary for n in range(1, 21)]


@needs_chromium
def test_logits_and_tokens_are_those_of_python(tmp_path, adapter):
    prompts, expected = {}, {}
    for name in MODELS:
        with GGUFFile.open(golden(f"{name}.gguf")) as file:
            manifest = export_plan(file, tmp_path / name, "0" * 64)
            prompts[name] = prompt_of(manifest["model"]["vocabulary"])
            expected[name] = reference(file, prompts[name], Device(adapter, portable=True))
    shutil.copy(tmp_path / MODELS[0] / "engine.js", tmp_path)
    (tmp_path / "cases.json").write_text(json.dumps(prompts))
    found = run_in_browser(tmp_path, SCRIPT.replace("STEPS", str(STEPS)))
    for name, (logits, tokens) in expected.items():
        difference = np.array(found[name]["logits"], np.float32) - logits
        rms = float(np.sqrt((difference.astype(np.float64) ** 2).mean()) / max(1.0, float(logits.std())))
        assert rms < 1e-4, name
        assert found[name]["tokens"] == tokens, name
        assert found[name]["ahead"] == tokens, name


def reference(file: GGUFFile, prompt: list[int], device: Device) -> tuple[np.ndarray, list[int]]:
    """Logits and greedy tokens of a prompt and the steps after it, in Python."""
    logits, tokens = [], []
    runner = GpuRunner(device, file, load_generator(file))
    row = prefill(runner, prompt)[-1]
    for step in range(STEPS):
        logits.append(row)
        tokens.append(int(row.argmax()))
        [row] = runner.step(Batch.of([(0, len(prompt) + step, tokens[-1:])]))
    runner.close()
    return np.array(logits), tokens
