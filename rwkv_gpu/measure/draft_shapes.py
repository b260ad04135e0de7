"""Shapes of draft heads that are stored in separate files."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .mixture_shapes import Heads
from .quants import Quant, Tensors, keyed, rows


@dataclass(frozen=True)
class Drafter:
    """The sizes of an EAGLE-3 or DFlash head, which uses the embedding and the output matrix of its model."""

    arch: str
    layers: int
    width: int
    inner: int
    heads: Heads
    read: tuple[int, ...]  # layers of the model whose inputs it reads
    context: int = 131072
    block: int = 16  # tokens of a block of DFlash
    mask: int = 3  # id of the placeholder for a token to draft

    def tensors(self, quant: Quant) -> Tensors:
        """All tensors, in file order."""
        eagle = int(self.arch == "eagle3")
        sizes = {
            "D": self.width, "I": self.inner, "Q": self.heads.count * self.heads.size, "read": len(self.read),
            "KV": self.heads.kv * self.heads.size, "size": self.heads.size, "inputs": 1 + eagle, "gated": 1,
            "eagle": eagle, "dflash": 1 - eagle,
        }  # fmt: skip
        yield from rows("drafter", vars(quant), sizes)
        for i in range(self.layers):
            yield from rows("drafter layer, feed", vars(quant), sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """The metadata that loaders read."""
        sizes: dict[str, Value] = {
            "context_length": self.context, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads.count,
            "attention.head_count_kv": self.heads.kv, "attention.key_length": self.heads.size,
            "attention.value_length": self.heads.size, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6, "target_hidden_size": self.width, "target_layers": list(self.read),
            "block_size": self.block,
        }  # fmt: skip
        return keyed(self.arch, sizes) | {"tokenizer.ggml.mask_token_id": self.mask}


DRAFTERS = {
    "gpt-oss-20b-eagle3": Drafter("eagle3", 1, 2880, 17280, Heads(64, 8, 64), (2, 12, 21)),
    "qwen3-8b-dflash": Drafter("dflash", 5, 4096, 12288, Heads(32, 8, 128), (2, 10, 18, 26, 34)),
}
