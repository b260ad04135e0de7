"""The true shapes of well-known encoders that have BERT's form."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .quants import Quant, Shape, Tensors, byte_vocabulary, norm, whole

MEAN, FIRST = 1, 2  # of `pooling_type`


@dataclass(frozen=True)
class Bert:
    """The sizes of a BERT: each position has a row, and all matrices have biases."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    context: int = 512
    types: int = 2  # of tokens
    pooling: int = FIRST
    eps: float = 1e-12
    arch = "bert"

    def tensors(self, quant: Quant) -> Tensors:
        """All of them, in the order of a file."""
        d = self.width
        yield "token_embd.weight", (self.vocabulary, d), whole(quant.head, d)
        yield from self._positions()
        yield "token_types.weight", (self.types, d), "F32"
        yield from norm("token_embd_norm", d)
        for i in range(self.layers):
            yield from self._attention(f"blk.{i}.attn", quant)
            yield from norm(f"blk.{i}.attn_output_norm", d)
            yield from self._feed(f"blk.{i}.ffn", quant)
            yield from norm(f"blk.{i}.layer_output_norm", d)

    def _positions(self) -> Tensors:
        yield "position_embd.weight", (self.context, self.width), "F32"

    def _attention(self, at: str, quant: Quant) -> Tensors:
        for name in ("q", "k", "v", "output"):
            yield from self._matrix(f"{at}_{name}", self.width, self.width, quant)

    def _feed(self, at: str, quant: Quant) -> Tensors:
        yield from self._matrix(f"{at}_up", self.inner, self.width, quant)
        yield from self._matrix(f"{at}_down", self.width, self.inner, quant)

    def _matrix(self, name: str, rows: int, width: int, quant: Quant) -> Tensors:
        yield f"{name}.weight", (rows, width), whole(quant.matrices, width)
        yield f"{name}.bias", (rows,), "F32"

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        return {
            **{f"{self.arch}.{key}": value for key, value in self._sizes().items()},
            "tokenizer.ggml.token_type_count": self.types,
            **byte_vocabulary(self.vocabulary),
        }

    def _sizes(self) -> dict[str, Value]:
        return {
            "context_length": self.context, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads, "attention.causal": False,
            "attention.layer_norm_epsilon": self.eps, "pooling_type": self.pooling,
        }  # fmt: skip


@dataclass(frozen=True)
class NomicBert(Bert):
    """The same where positions turn: one matrix for q, k and v, a gate, and no biases."""

    arch = "nomic-bert"

    def _positions(self) -> Tensors:
        yield from ()

    def _attention(self, at: str, quant: Quant) -> Tensors:
        yield from self._matrix(f"{at}_qkv", 3 * self.width, self.width, quant)
        yield from self._matrix(f"{at}_output", self.width, self.width, quant)

    def _feed(self, at: str, quant: Quant) -> Tensors:
        yield from self._matrix(f"{at}_gate", self.inner, self.width, quant)
        yield from super()._feed(at, quant)

    def _matrix(self, name: str, rows: int, width: int, quant: Quant) -> Tensors:
        yield f"{name}.weight", (rows, width), whole(quant.matrices, width)

    def _sizes(self) -> dict[str, Value]:
        return super()._sizes() | {"rope.freq_base": 1000.0}


ENCODERS: dict[str, Shape] = {
    "all-minilm-l6-v2": Bert(6, 384, 1536, 12, 30522, pooling=MEAN),
    "bge-large-en-v1.5": Bert(24, 1024, 4096, 16, 30522),
    "bge-m3": Bert(24, 1024, 4096, 16, 250002, 8192, types=1, eps=1e-5),
    "nomic-embed-text-v1.5": NomicBert(12, 768, 3072, 12, 30522, 2048, pooling=MEAN),
}
