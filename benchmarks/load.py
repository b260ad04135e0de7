"""How fast parameters go from a file in the cache to the device, and how much host memory that takes.

    python -m benchmarks.load [--device NAME] [--gib 1] [--formats Q4_K,Q6_K,Q8_0,F16]

Writes a file of random weights to the temporary folder, loads it twice, and prints the second run: GB/s of the file,
repacking included, and the peak of resident memory above the start, less what a software device keeps there itself.
"""

import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import click
import gguf
import numpy as np

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.loader import Parameter, load_weights

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
WIDTH, OUT = 2560, 10240


def write_model(path: Path, fmt: Format, nbytes: int) -> None:
    """Matrices of 10240 x 2560 until there are so many bytes."""
    row = fmt.row_bytes(WIDTH)
    writer = gguf.GGUFWriter(path, "test")
    data = np.random.default_rng(0).integers(0, 256, (OUT, row), np.uint8)
    for number in range(max(1, nbytes // data.nbytes)):
        writer.add_tensor(f"blk.{number}.w", data, raw_dtype=gguf.GGMLQuantizationType(fmt.type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Peak:
    """Watches resident memory, less the device's own where that is host memory too."""

    def __init__(self, device: Device) -> None:
        self.device, self.most, self._stop = device, 0, threading.Event()
        self._base = resident()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.most = max(self.most, resident() - self._base)


@click.command()
@click.option("--device", default="auto")
@click.option("--gib", default=1.0)
@click.option("--formats", default="Q4_K,Q6_K,Q8_0,F16")
def main(device: str, gib: float, formats: str) -> None:
    adapters = list_adapters()
    adapter = choose(adapters, device).adapter or next(a for a in adapters if a.backend == "Vulkan")
    print(f"{adapter}; {os.cpu_count()} cores")
    for name in formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_model(path, BY_NAME[name], int(gib * 2**30))
            for last in (False, True):
                with Device(adapter) as gpu, GGUFFile.open(path) as file:
                    wanted = [Parameter(t.name, t.shape, (t,), t.format) for t in file.tensors.values()]
                    with Peak(gpu) as peak:
                        start = time.perf_counter()
                        weights = load_weights(gpu, file, wanted)
                        seconds = time.perf_counter() - start
                    held = gpu.memory()["weights"]
                    del weights
                if last:
                    above = peak.most - (held if gpu.capabilities.software else 0)
                    rate = f"{file.nbytes / 1e9:5.2f} GB in {seconds:5.2f} s = {file.nbytes / seconds / 1e9:5.2f} GB/s"
                    print(f"  {name:6} {rate}, host memory {above / 2**20:6.0f} MiB above the start")


if __name__ == "__main__":
    main()
