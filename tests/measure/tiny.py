"""Synthetic models small enough for a test."""

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import Keys, Shape
from rwkv_gpu.measure.synthetic import named, noise, opened

LAYERS = 8  # as many layers contain every kind of layer
EVERY = 1000  # more layers than any model has


class WithoutTokens(Shape):
    """A synthetic model without the texts of its tokens: a quarter million of them take a second."""

    def metadata(self) -> Keys:
        return self.header()


def opened_tiny(shape: Shape, quant: str = "q4_k_m") -> GGUFFile:
    """Opens a tiny synthetic model of any shape, like `open_synthetic`."""
    return opened(noise("tiny", shape, QUANTS[quant]))


def opened_layers(name: str, layers: int = LAYERS) -> GGUFFile:
    """Opens the first layers of a synthetic model, for recording plans: all layers of a kind have equal dispatches.

    A model with fewer layers is opened as a whole.
    """
    whole_name, shape, quant = named(name)
    return opened(noise(whole_name, WithoutTokens(**vars(shape.cut(layers))), quant))
