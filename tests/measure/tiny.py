"""Synthetic models small enough for a test."""

from pathlib import Path

from rwkv_gpu.gguf.file import GGUFFile, Part
from rwkv_gpu.gguf.scan import scan
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import Shape
from rwkv_gpu.measure.synthetic import noise


def opened_tiny(shape: Shape, quant: str = "q4_k_m") -> GGUFFile:
    """Opens a tiny synthetic model of any shape, like `open_synthetic`."""
    source = noise("tiny", shape, QUANTS[quant])
    part = Part(Path("tiny"), source, scan(source))
    return GGUFFile([part], part.header.tensors)
