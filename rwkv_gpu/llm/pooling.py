"""Pools the vectors of a text's tokens to one, or scores how well a document answers a query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..engine.request import check_length
from ..errors import BadFile, BadInput
from ..gguf.file import GGUFFile, TensorInfo
from ..models.tensors import CLASSIFIER, RANK
from ..text.base import Tokenizer
from ..text.vocabulary import read_flag, read_id, read_name

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = TypeVar("Numbers", Floats, Doubles)
NONE, MEAN, FIRST, LAST = range(4)  # values of `pooling_type`; the next value is RANK
PROBABLE = "qwen3", "qwen3vl"  # architectures whose scores are probabilities of labels
NORMED_GELU = "modern-bert"  # architecture whose classifier uses GELU instead of tanh
RANK_TEMPLATE = "tokenizer.chat_template.rerank"


@dataclass(frozen=True)
class Affine:
    """W x + b of a vector, or of each row"""

    matrix: Floats  # [out, in]
    bias: Floats | None = None

    def __call__(self, x: Numbers) -> Numbers:
        y: Numbers = x @ self.matrix.T
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class Classifier:
    """softmax(W_out norm(act(W x))); steps that the file lacks are left out."""

    inner: Affine | None
    gelu: bool  # whether `act` is GELU instead of tanh
    norm: Floats | None
    eps: float
    out: Affine | None
    probable: bool

    def __call__(self, x: Doubles) -> Doubles:
        if self.inner is not None:
            x = self.inner(x)
            x = x / 2 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))) if self.gelu else np.tanh(x)
            if self.norm is not None:
                x = (x - x.mean()) / np.sqrt(x.var() + self.eps) * self.norm
        if self.out is not None:
            x = self.out(x)
        if self.probable:
            x = np.exp(x - x.max())
            x /= x.sum()
        return x


@dataclass(frozen=True)
class Pooling:
    """Mean of all tokens, the first, or the last; then an optional classifier."""

    kind: int  # MEAN, FIRST or LAST
    classifier: Classifier | None = None

    @classmethod
    def of(cls, file: GGUFFile, *, encoder: bool) -> "Pooling":
        """Reads the pooling of a file; the default is the mean.

        Files of 2024 do not say that their model ranks texts: it does if it is an encoder with a classifier.
        """
        arch = file.str("general.architecture")
        ranks = encoder and any(name.startswith(CLASSIFIER) for name in file.tensors)
        kind = file.int(f"{arch}.pooling_type", NONE, RANK, default=RANK if ranks else MEAN)
        if kind != RANK:
            return cls(kind or MEAN)
        if encoder:
            usual = MEAN if arch == NORMED_GELU else FIRST
            kind = file.int(f"{arch}.classifier.pooling_type", MEAN, LAST, default=usual)
        else:
            kind = LAST
        eps = file.float(f"{arch}.attention.layer_norm_epsilon", default=1e-5)
        tensors = _Tensors(file)
        inner, norm, out = tensors.affine("cls"), tensors.vector("cls.norm.weight"), tensors.affine("cls.output")
        return cls(kind, Classifier(inner, arch == NORMED_GELU, norm, eps, out, arch in PROBABLE))

    def begun(self) -> "Pool":
        """Starts the pooling of a text."""
        return Pool(self)


class Pool:
    """Accumulates the tokens of one text."""

    def __init__(self, how: Pooling) -> None:
        self._how = how
        self._sum: Doubles | None = None  # the sum so far, or the single token's vector
        self._count = 0

    def take(self, rows: Floats) -> None:
        """Adds the next tokens. [T, D]"""
        if not len(rows):
            return
        self._count += len(rows)
        if self._how.kind == MEAN:
            self._sum = rows.sum(axis=0, dtype=np.float64) + (0 if self._sum is None else self._sum)
        elif self._how.kind == LAST or self._sum is None:
            self._sum = rows[-1 if self._how.kind == LAST else 0].astype(np.float64)

    def vector(self, dimensions: int | None = None) -> Doubles:
        """The unit vector of the text, of its first `dimensions` components if given; zeros stay zeros."""
        x = self._pooled()
        if dimensions is not None and dimensions > len(x):
            raise BadInput(f"dimensions is {dimensions:,}; embeddings of this model have {len(x):,}")
        x = x[:dimensions]
        y: Doubles = x / (np.linalg.norm(x) or 1.0)
        return y

    def score(self) -> float:
        """Relevance by the classifier: its first label."""
        assert self._how.classifier is not None
        return float(self._how.classifier(self._pooled())[0])

    def _pooled(self) -> Doubles:
        assert self._sum is not None, "a text has at least one token"
        return self._sum / self._count if self._how.kind == MEAN else self._sum


def ranking_ids(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], query: str, document: str, context: int | None
) -> list[int]:
    """Builds the input of a ranking model. Refuses texts that cannot fit the context before it tokenises them.

    It is the file's template, or [BOS] query [EOS] [SEP] document [EOS], with the tokens that the file defines.
    """
    template = metadata.get(RANK_TEMPLATE)
    if isinstance(template, str):
        text = template.replace("{query}", query).replace("{document}", document)
        check_length(tokenizer.fewest_tokens(text), context, least=True)
        return tokenizer.encode(text, parse=True)
    check_length(tokenizer.fewest_tokens(query, document), context, least=True)
    bert, pre = read_name(metadata, "model") == "bert", read_name(metadata, "pre")
    separated = bert or pre in ("jina-v1-en", "jina-v2-code", "roberta-bpe")
    # Files have this key in this misspelt form.
    separator = read_id(metadata, "seperator", tokenizer.vocab_size, 102 if bert else None)
    eos = separator if tokenizer.eos is None else tokenizer.eos
    begin = [tokenizer.bos] if read_flag(metadata, "add_bos_token", tokenizer.add_bos) else []
    end = [eos] if read_flag(metadata, "add_eos_token", tokenizer.add_eos and not bert) else []
    between = [separator] if read_flag(metadata, "add_sep_token", separated) else []
    parts = (begin, tokenizer.encode(query), end, between, tokenizer.encode(document), end)
    return [token for part in parts for token in part if token is not None]


class _Tensors:
    """The tensors of a file's classifier layers as floats. The input width of each must match the layer before."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._width = file.int(f"{file.str('general.architecture')}.embedding_length", low=1)

    def affine(self, name: str) -> Affine | None:
        tensor = self._file.tensors.get(f"{name}.weight")
        if tensor is None:
            return None
        rows = tensor.shape[0] if len(tensor.shape) == 2 else 0
        matrix = floats_of(self._file, tensor, (rows, self._width))
        self._width = rows
        return Affine(matrix, self.vector(f"{name}.bias"))

    def vector(self, name: str) -> Floats | None:
        tensor = self._file.tensors.get(name)
        return None if tensor is None else floats_of(self._file, tensor, (self._width,))


def floats_of(file: GGUFFile, tensor: TensorInfo, shape: tuple[int, ...], *, ones: bool = False) -> Floats:
    """Reads a tensor of this shape as finite floats. With `ones`, the file may add or leave out sizes of 1."""
    check_shape(file, tensor, shape, ones=ones)
    values = file.values(tensor)
    if not np.isfinite(values).all():
        raise BadFile(f"{file.path}: tensor '{tensor.name}' has numbers that are not finite")
    return values.reshape(shape)


def check_shape(file: GGUFFile, tensor: TensorInfo, shape: tuple[int, ...], *, ones: bool = False) -> None:
    """Refuses a tensor of another shape."""
    found, expected = ([n for n in sizes if n > 1 or not ones] for sizes in (tensor.shape, shape))
    if found != expected:
        sizes = f"found the shape {list(tensor.shape)}, expected {list(shape)}"
        raise BadFile(f"{file.path}: tensor '{tensor.name}': {sizes}")
