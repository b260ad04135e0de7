"""Writes GGUF files with real shapes and random weights, to measure speed here or in llama.cpp.

    python -m benchmarks.synthetic rwkv7-0.1b-q4_k_m OUT.gguf

`rwkv-gpu bench --synthetic NAME` measures the same bytes without a file.
"""

from pathlib import Path

import click

from rwkv_gpu.measure.synthetic import named, noise, write


@click.command()
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
def main(name: str, path: Path) -> None:
    write(path, noise(*named(name)))
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
