"""Replays an exported model over wgpu, by docs/export.md alone: what a program in another language has to do.

python -m tests.export.replay FOLDER TEXT-OF-IDS [--steps N]
"""

import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
KINDS = {"uniform": "uniform", "read": "read-only-storage", "read_write": "storage"}
FROM_SLOT = 0x80000000  # as an id: the token that was sampled last
SKIP, GREEDY, CUT, BIASED = 1, 2, 16, 32


class Replayer:
    """One sequence of an exported model."""

    def __init__(self, folder: Path, adapter: Any, variant: dict[str, Any]) -> None:
        self.folder, self.variant = folder, variant
        self.manifest = manifest(folder)
        features = {"subgroups": "subgroup", "shader-f16": "shader-f16"}  # wgpu-py's names
        self.device = adapter.request_device_sync(required_features=[features[name] for name in variant["features"]])
        self.buffers = self._buffers()
        self.pipelines: dict[int, Any] = {}
        self.length, self.newest = 0, 0

    def _buffers(self) -> dict[int, Any]:
        rows = self.manifest["buffers"]
        data = b"".join((self.folder / one["file"]).read_bytes() for one in self.manifest["shards"])
        used = {one["buffer"] for one in (*self.manifest["states"], *self.manifest["caches"])}
        for plan in self.variant["plans"]:
            used |= {plan["step"]["buffer"], *(one["buffer"] for one in plan["outputs"].values())}
            used |= {buffer for _, _, bound in plan["dispatches"] for _, buffer, _, _ in bound}
        buffers = {}
        for number in sorted(used):
            row = rows[number]
            usage = STORAGE | (wgpu.BufferUsage.UNIFORM if row.get("uniform") else 0)
            buffers[number] = self.device.create_buffer(size=row["bytes"], usage=usage)
            if "data" in row:
                self.device.queue.write_buffer(buffers[number], 0, data[row["data"] : row["data"] + row["bytes"]])
        return buffers

    def _pipeline(self, number: int) -> Any:
        if number not in self.pipelines:
            shader = self.manifest["shaders"][number]
            source = "".join(self.manifest["texts"][one] for one in shader["source"])
            entries = [
                {"binding": n, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": KINDS[access]}}
                for n, access in shader["bindings"]
            ]
            layout = self.device.create_bind_group_layout(entries=entries)
            pipeline = self.device.create_compute_pipeline(
                layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": self.device.create_shader_module(code=adapted(source)), "entry_point": "main"},
            )
            self.pipelines[number] = pipeline, layout
        return self.pipelines[number]

    def step(self, ids: list[int], draw: bytes) -> int:
        """Computes the next tokens, and returns the sampled one."""
        plan = next(plan for plan in self.variant["plans"] if plan["rows"] >= len(ids))
        self.device.queue.write_buffer(self.buffers[plan["step"]["buffer"]], 0, self._inputs(plan, ids, draw))
        self.newest = 1 - self.newest
        self.length += len(ids)
        encoder = self.device.create_command_encoder()
        computing = encoder.begin_compute_pass()
        for shader, grid, bound in plan["dispatches"]:
            pipeline, layout = self._pipeline(shader)
            entries = [
                {"binding": n, "resource": {"buffer": self.buffers[number], "offset": offset, "size": size}}
                for n, number, offset, size in bound
            ]
            computing.set_pipeline(pipeline)
            computing.set_bind_group(0, self.device.create_bind_group(layout=layout, entries=entries))
            computing.dispatch_workgroups(*grid)
        computing.end()
        self.device.queue.submit([encoder.finish()])
        self.outputs = plan["outputs"]
        token, _, reason = struct.unpack("<IfI", self.read("chosen", 12))
        assert reason in (0, 3), "the numbers are not finite"
        return int(token)

    def read(self, name: str, nbytes: int | None = None) -> bytes:
        """Returns the bytes of an output of the last step."""
        one = self.outputs[name]
        return bytes(self.device.queue.read_buffer(self.buffers[one["buffer"]], one["offset"], nbytes or one["row"]))

    def _inputs(self, plan: dict[str, Any], ids: list[int], draw: bytes) -> bytes:
        rows, end = len(ids), self.length + len(ids)
        data = bytearray(plan["step"]["bytes"])
        struct.pack_into("<6I", data, 0, rows, 1, 1, plan["rows"], end, end)
        struct.pack_into("<4I", data, 256, 1, 1, 1, plan["rows"])
        words = {
            "ids": ids,
            "segments": [0, rows, self.length, self.newest, 1 - self.newest],
            "output_rows": [rows - 1],
            "places": [at for row in range(self.length, end) for at in (row, row)],
            "pages": [*range(math.ceil(end / 64))],
            "lengths": [end, end],
        }
        for name, values in words.items():
            if name in plan["step"]["inputs"]:
                struct.pack_into(f"<{len(values)}I", data, plan["step"]["inputs"][name]["offset"], *values)
        at = plan["step"]["inputs"]["draws"]["offset"]
        data[at : at + len(draw)] = draw
        return bytes(data)

    def draw(self, number: int, temperature: float = 0, seed: int = 0) -> bytes:
        """Returns the words of a draw without top-k, top-p and min-p."""
        flags = (0 if temperature else GREEDY) | (BIASED if self.manifest["sampler"]["biased"] else 0)
        divisor = 1 / temperature if temperature else 1e30
        words = flags, seed & 0xFFFFFFFF, seed >> 32, number, self.length, divisor, 0xFFFFFFFF, 1.0, -3.4e38, 1.0
        return struct.pack("<6IfIfff", 0, *words)

    def generate(self, ids: list[int], count: int, **sampling: Any) -> list[int]:
        """Returns the tokens after these. The ids of steps are what the GPU sampled last."""
        most = max(plan["rows"] for plan in self.variant["plans"])
        for start in range(0, len(ids) - most, most):
            self.step(ids[start : start + most], struct.pack("<2I", 0, SKIP))
        rest = (len(ids) - 1) // most * most
        tokens = [self.step(ids[rest:], self.draw(0, **sampling))]
        while len(tokens) < count:
            tokens.append(self.step([FROM_SLOT], self.draw(len(tokens), **sampling)))
        return tokens


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder."""
    return json.loads((folder / "model.json").read_text("utf-8", "surrogatepass"))  # type: ignore[no-any-return]


def adapted(source: str) -> str:
    """Returns WGSL in the form that this wgpu accepts: its naga needs no directive for subgroups."""
    return source.replace("enable subgroups;\n", "")


def main() -> None:
    folder, ids = Path(sys.argv[1]), [int(one) for one in sys.argv[2].split(",")]
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    for variant in manifest(folder)["variants"]:
        replayer = Replayer(folder, adapter, variant)
        print(variant["subgroup"], replayer.generate(ids, int(sys.argv[4]) if len(sys.argv) > 4 else 20))
        logits = np.frombuffer(replayer.read("logits"), np.float32)
        print(adapter.info["device"], logits[:4])


if __name__ == "__main__":
    main()
