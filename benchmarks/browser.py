"""Measures an exported model in Chromium and the same model in Python, both on Chromium's software adapter.

    VK_DRIVER_FILES=/usr/lib/chromium/vk_swiftshader_icd.json python -m benchmarks.browser [MODEL.gguf] [--tokens N]

Prints tokens per second of decode, and the time that JavaScript takes to encode one dispatch.
"""

import json
import tempfile
import time
from pathlib import Path

import click

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.export.files import export_plan
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_generator
from rwkv_gpu.ops.batch import Batch
from tests.export.browser import decode_only, run_in_browser

SCRIPT = """
import { Engine } from "./engine.js";
const mean = (times) => times.reduce((sum, time) => sum + time, 0) / times.length; // the clock has steps of 0.1 ms
export default async function () {
  const tokens = TOKENS;
  const manifest = await (await fetch("model.json")).json();
  const shard = async (index) => new Uint8Array(await (await fetch(manifest.shards[index].file)).arrayBuffer());
  const found = { encode: [], submit: [] };
  let began = 0;
  const timed = (type, name, before, after) => {
    const original = type.prototype[name];
    type.prototype[name] = function (...given) {
      before();
      const value = original.apply(this, given);
      after();
      return value;
    };
  };
  timed(GPUCommandEncoder, "beginComputePass", () => { began = performance.now(); }, () => {});
  timed(GPUComputePassEncoder, "end", () => {}, () => found.encode.push(performance.now() - began));
  timed(GPUQueue, "submit", () => { began = performance.now(); }, () => found.submit.push(performance.now() - began));
  const started = performance.now();
  const engine = await Engine.open(manifest, shard);
  const opened = performance.now() - started;
  const rates = [];
  for (let turn = 0; turn < 3; turn++) {
    engine.reset();
    const times = [];
    for await (const _ of engine.generate([1], { temperature: 0 }, tokens)) times.push(performance.now());
    rates.push(1000 * (times.length - 1) / (times.at(-1) - times[0]));
  }
  const { plans: [{ dispatches }], subgroup } = engine.variant;
  const [encode, submit] = [found.encode, found.submit].map(mean);
  return { opened: opened / 1000, rate: Math.max(...rates), subgroup, dispatches: dispatches.length, encode, submit };
}
"""


@click.command()
@click.argument("model", default="")
@click.option("--tokens", default=33, show_default=True)
def main(model: str, tokens: int) -> None:
    """Measures MODEL, or the built-in model."""
    with GGUFFile.open(Path(model or builtin_model())) as file, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = decode_only(export_plan(file, folder, "0" * 64))
        for portable in (False, True):
            variants = manifest["variants"][-1:] if portable else manifest["variants"]
            (folder / "model.json").write_text(json.dumps({**manifest, "variants": variants}))
            found = run_in_browser(folder, SCRIPT.replace("TOKENS", str(tokens)))
            each = 1000 * found["encode"] / found["dispatches"]
            print(
                f"Chromium, subgroups of {found['subgroup']}: {found['rate']:.2f} tok/s after {found['opened']:.0f} s"
            )
            print(f"  {found['dispatches']} dispatches of {each:.2f} us, submitted in {1000 * found['submit']:.0f} us")
        print(f"Python, {in_python(file, tokens)}")


def in_python(file: GGUFFile, tokens: int) -> str:
    """The rate of decode in Python with and without subgroups."""
    rates = []
    for portable in (False, True):
        device = Device.open("0", portable=portable)
        runner = GpuRunner(device, file, load_generator(file))
        token, best = 1, 0.0
        for _ in range(3):
            began = 0.0
            for step in range(tokens):
                [row] = runner.step(Batch.of([(0, step, [token])]))
                token = int(row.argmax())
                began = began or time.perf_counter()
            best = max(best, (tokens - 1) / (time.perf_counter() - began))
            token = 1
        runner.close()
        rates.append(f"{best:.2f} tok/s {'without' if portable else 'with'} features")
    return f"{device.adapter.name}: {', '.join(rates)}"


if __name__ == "__main__":
    main()
