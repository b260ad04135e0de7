"""Measures the time from images to the first token, with synthetic models of true sizes.

    python -m benchmarks.images qwen3-vl-8b gemma3-12b ministral3-8b --images 1,8
    python -m benchmarks.images gemma3-12b --folder FILES     # keeps the files for other programs

Text weights are Q4_K_M, towers F16. Each measurement has new images. Its second pass has the same images after another
text, so it encodes none and reads the whole prompt. The difference is the tower's time.
"""

import io
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

import rwkv_gpu
from rwkv_gpu.cli.options import device_option, numbers
from rwkv_gpu.gguf.header import TensorDescription, Value, write_header
from rwkv_gpu.llm.images import MARKER, ImagePrompt
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import SHAPES, Shape, sizes, transformer
from rwkv_gpu.measure.synthetic import BY_NAME, Noise, noise, write
from rwkv_gpu.vision import encoder

SETTINGS: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
DEEPSTACK = 8, 16, 24  # layers of Qwen3-VL's tower whose outputs are used


@dataclass(frozen=True)
class Seeing:
    """A language model and the sizes of its tower."""

    text: Shape
    kind: str  # type of the projector
    side: int  # pixels
    patch: int
    width: int
    inner: int
    layers: int
    heads: int
    keys: dict[str, Value] = field(default_factory=dict)

    @property
    def small(self) -> "Seeing":
        """The same model with narrow rows, to try the command."""
        text = replace(self.text, keys=self.text.keys | sizes(4, 256, 512, 2, 1, 128), vocabulary=1024)
        return replace(self, text=text, width=64, inner=128, heads=2)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The names and shapes of the tensors of the projector."""
        width, out, pixels = self.width, self.text.keys["embedding_length"], (self.width, 3, self.patch, self.patch)
        pixtral, joined = self.kind == "pixtral", 4 * self.width
        yield "v.patch_embd.weight", pixels
        for i in range(self.layers):
            at = f"v.blk.{i}"
            yield from _biased(f"{at}.ln1", width, biased=not pixtral)
            fused = self.kind == "qwen3vl_merger"
            for name, rows in [("qkv", 3 * width)] if fused else [(name, width) for name in "qkv"]:
                yield from _biased(f"{at}.attn_{name}", rows, width, biased=not pixtral)
            yield from _biased(f"{at}.attn_out", width, width, biased=not pixtral)
            yield from _biased(f"{at}.ln2", width, biased=not pixtral)
            for name in ("gate", "up") if pixtral else ("up",):
                yield from _biased(f"{at}.ffn_{name}", self.inner, width, biased=not pixtral)
            yield from _biased(f"{at}.ffn_down", width, self.inner, biased=not pixtral)
        if pixtral:
            yield from _biased("v.pre_ln", width, biased=False)
            yield from (("v.token_embd.img_break", (out,)), ("mm.input_norm.weight", (width,)))
            yield from (("mm.patch_merger.weight", (width, joined)), ("mm.1.weight", (out, width)))
            yield "mm.2.weight", (out, out)
            return
        yield "v.patch_embd.bias", (width,)
        yield "v.position_embd.weight", ((self.side // self.patch) ** 2, width)
        yield from _biased("v.post_ln", width)
        if self.kind == "gemma3":
            yield from (("mm.soft_emb_norm.weight", (width,)), ("mm.input_projection.weight", (width, out)))
            return
        yield "v.patch_embd.weight.1", pixels
        yield from (*_biased("mm.0", joined, joined), *_biased("mm.2", out, joined))
        for at in (f"v.deepstack.{i}" for i in DEEPSTACK if i < self.layers):
            yield from _biased(f"{at}.norm", joined)
            yield from (*_biased(f"{at}.fc1", joined, joined), *_biased(f"{at}.fc2", out, joined))

    def projector(self, name: str) -> Noise:
        """The bytes of the projector file."""
        every = [
            TensorDescription(one, shape, BY_NAME["F16" if len(shape) > 1 and "position" not in one else "F32"])
            for one, shape in self.tensors()
        ]
        sizes = {
            "embedding_length": self.width, "feed_forward_length": self.inner, "block_count": self.layers,
            "attention.head_count": self.heads, "attention.layer_norm_epsilon": 1e-6, "image_size": self.side,
            "patch_size": self.patch, "projection_dim": self.text.keys["embedding_length"],
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        }  # fmt: skip
        metadata: dict[str, Value] = {"general.architecture": "clip", "clip.has_vision_encoder": True}
        metadata |= {"clip.projector_type": self.kind, **{f"clip.vision.{key}": value for key, value in sizes.items()}}
        return Noise(name, write_header(metadata | self.keys, every), every)

    def write(self, name: str, folder: Path) -> tuple[Path, Path]:
        """Writes the language model and the projector; returns their paths."""
        paths = folder / f"{name}-q4_k_m.gguf", folder / f"mmproj-{name}-f16.gguf"
        for path, source in zip(paths, (noise(name, self.text, QUANTS["q4_k_m"]), self.projector(name)), strict=True):
            if not path.exists() or path.stat().st_size != source.nbytes:
                write(path, source)
        return paths


def _biased(name: str, *shape: int, biased: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    if biased:
        yield f"{name}.bias", shape[:1]


QWEN3VL = transformer(
    "qwen3vl", 151936, sizes(36, 4096, 12288, 32, 8, 128) | {
        "rope.dimension_sections": [24, 20, 20, 0], "rope.freq_base": 5e6, "n_deepstack_layers": len(DEEPSTACK),
    }, "output",
)  # fmt: skip
FLAGS = [i in DEEPSTACK for i in range(27)]
MODELS = {
    "qwen3-vl-8b": Seeing(
        QWEN3VL, "qwen3vl_merger", 768, 16, 1152, 4304, 27, 16,
        {"clip.use_gelu": True, "clip.vision.spatial_merge_size": 2, "clip.vision.is_deepstack_layers": FLAGS},
    ),
    "gemma3-12b": Seeing(
        SHAPES["gemma3-12b"], "gemma3", 896, 14, 1152, 4304, 27, 16,
        {"clip.use_gelu": True, "clip.vision.projector.scale_factor": 4},
    ),
    "ministral3-8b": Seeing(
        SHAPES["ministral3-8.5b"], "pixtral", 1540, 14, 1024, 4096, 24, 16,
        {"clip.use_silu": True, "clip.vision.spatial_merge_size": 2},
    ),
}  # fmt: skip


def photo(rng: np.random.Generator, side: int) -> bytes:
    """A JPEG file of smooth shades and some noise."""
    y, x = np.mgrid[:side, :side] / 40
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(-1, 1, (3, 3))]
    shades = np.stack(waves, axis=-1) * 90 + 128 + rng.normal(0, 8, (side, side, 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(shades, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def lap(llm: rwkv_gpu.LLM, images: Sequence[bytes], word: str) -> tuple[float, float, int]:
    """Returns the seconds to prepare a prompt with these images and to the first token, and the prompt's tokens."""
    prompt = ImagePrompt(f"{word} " + MARKER * len(images) + "What is this?", images)
    began = time.perf_counter()
    prepared = llm.prepare_completion(prompt, **SETTINGS)
    after = time.perf_counter()
    llm.create_completion(prompt, **SETTINGS)
    return after - began, time.perf_counter() - after, prepared.prompt_tokens


def measure(llm: rwkv_gpu.LLM, count: int, side: int, repeats: int) -> tuple[list[float], int]:
    """Returns median milliseconds: total, preparation, tower and prompt; and the prompt's number of tokens."""
    rng, laps, tokens = np.random.default_rng(count), [], 0
    for number in range(-1, repeats):  # the first pass compiles
        images = [photo(rng, side) for _ in range(count)]
        first, whole, tokens = lap(llm, images, f"{number} a")
        second, again, _ = lap(llm, images, f"{number} b")
        prepared = (first + second) / 2
        laps.append((whole, prepared, whole - again, again - prepared))
    return [1000 * statistics.median(column) for column in zip(*laps[1:], strict=True)], tokens


@click.command()
@click.argument("models", nargs=-1, type=click.Choice(list(MODELS)))
@click.option("--images", "counts", type=numbers, default="1,8", help="Images of a prompt.")
@click.option("--side", default=1024, help="Pixels of a side of each image.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=5)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the files here. Default: a temporary folder.")
@click.option("--small", is_flag=True, help="Narrow rows, to try the command.")
@device_option
def main(
    models: Sequence[str], counts: list[int], side: int, repeats: int, folder: Path | None, small: bool, device: str
) -> None:
    """Measures MODELS, by default all of them."""
    encoder.MAX_KEPT = 1 << 36  # bytes: a second pass encodes no image, however many there are
    click.echo(
        "| model | images | tokens | first token, ms | preparation | tower | prompt |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for name in models or MODELS:
        with ExitStack() as stack:
            into = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            into.mkdir(parents=True, exist_ok=True)
            model, projector = (MODELS[name].small if small else MODELS[name]).write(name, into)
            if folder is not None:
                for number in range(max(counts)):
                    (folder / f"image-{number}.jpg").write_bytes(photo(np.random.default_rng(number), side))
            llm = stack.enter_context(
                rwkv_gpu.load(model, mmproj=projector, device=device, context=1 << 14, sequences=1)
            )
            for count in counts:
                times, tokens = measure(llm, count, side, repeats)
                click.echo(f"| {name} | {count} | {tokens:,} | " + " | ".join(f"{one:,.1f}" for one in times) + " |")


if __name__ == "__main__":
    main()
