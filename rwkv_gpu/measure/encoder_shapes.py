"""The true shapes of well-known encoders that have BERT's form."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gguf.header import Value
from .quants import Quant, Shape, Tensors, byte_vocabulary, keyed, rows

MEAN, FIRST = 1, 2  # of `pooling_type`

EMBEDDING = """
token_embd       V,D               head
position_embd    C,D
token_types      types,D
token_embd_norm  D                 F32+
"""
BERT_LAYER = """
attn_{q,k,v,output}  D,D           matrices+
attn_output_norm D                 F32+
ffn_up           I,D               matrices+
ffn_down         D,I               matrices+
layer_output_norm D                F32+
"""
NOMIC_LAYER = """
attn_qkv         3*D,D             matrices
attn_output      D,D               matrices
attn_output_norm D                 F32+
ffn_{gate,up}    I,D               matrices
ffn_down         D,I               matrices
layer_output_norm D                F32+
"""


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
        turns = self.arch == "nomic-bert"
        sizes = {"V": self.vocabulary, "D": self.width, "I": self.inner, "types": self.types}
        yield from rows(EMBEDDING, vars(quant), sizes | {"C": 0 if turns else self.context})
        for i in range(self.layers):
            yield from rows(NOMIC_LAYER if turns else BERT_LAYER, vars(quant), sizes, f"blk.{i}.")

    def metadata(self) -> Mapping[str, Value]:
        """What loaders ask for, with a vocabulary of bytes."""
        sizes: dict[str, Value] = {
            "context_length": self.context, "embedding_length": self.width, "block_count": self.layers,
            "feed_forward_length": self.inner, "attention.head_count": self.heads, "attention.causal": False,
            "attention.layer_norm_epsilon": self.eps, "pooling_type": self.pooling,
        }  # fmt: skip
        if self.arch == "nomic-bert":
            sizes["rope.freq_base"] = 1000.0
        types: dict[str, Value] = {"tokenizer.ggml.token_type_count": self.types}
        return keyed(self.arch, sizes) | types | byte_vocabulary(self.vocabulary)


@dataclass(frozen=True)
class NomicBert(Bert):
    """The same where positions turn: one matrix for q, k and v, a gate, and no biases."""

    arch = "nomic-bert"


ENCODERS: dict[str, Shape] = {
    "all-minilm-l6-v2": Bert(6, 384, 1536, 12, 30522, pooling=MEAN),
    "bge-large-en-v1.5": Bert(24, 1024, 4096, 16, 30522),
    "bge-m3": Bert(24, 1024, 4096, 16, 250002, 8192, types=1, eps=1e-5),
    "nomic-embed-text-v1.5": NomicBert(12, 768, 3072, 12, 30522, 2048, pooling=MEAN),
}
