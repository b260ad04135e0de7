"""The head of Clef models: it scores the options of questions from the final hidden states of a text, on the host.

It compares each option with its question. Options look at the whole text; questions look at their options, at each
other and at the whole text.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..errors import BadFile, BadNumbers, UnsupportedModel
from ..gguf.file import GGUFFile, TensorInfo
from ..gguf.row_table import RowTable
from ..ops.elementwise import gelu_erf
from ..ops.truncation import softmax
from .decisions import KINDS, Asked
from .pooling import Affine, Floats, check_shape, floats_of

Norm = tuple[Floats, Floats]  # weight and bias
NORMS = "option", "option_summary", "field"
MAPS = "memory", "question", "option_question", "global", "option_context", "option_lexical"


@dataclass(frozen=True)
class Look:
    """Attention of all rows of x to all rows of y, in heads: W_o softmax(q kᵀ / √N) v"""

    q: Affine
    k: Affine
    v: Affine
    out: Affine
    heads: int

    def __call__(self, x: Floats, y: Floats) -> Floats:
        q, k, v = (np.split(take(rows), self.heads, 1) for take, rows in ((self.q, x), (self.k, y), (self.v, y)))
        scale = np.float32(q[0].shape[1] ** -0.5)
        each: list[Floats] = [scale * (a @ b.T) for a, b in zip(q, k, strict=True)]
        return self.out(np.concatenate([softmax(a) @ b for a, b in zip(each, v, strict=True)], axis=1))


@dataclass(frozen=True)
class Layer:
    """Rows attend to each other, if they do, and to the text; then a feed-forward."""

    own: tuple[Norm, Look] | None
    norm: Norm
    text_norm: Norm | None
    look: Look
    feed: tuple[Norm, Affine, Affine]

    def __call__(self, x: Floats, text: Floats, eps: float) -> Floats:
        if self.own is not None:
            norm, look = self.own
            rows = normed(x, norm, eps)
            x = x + look(rows, rows)
        x = x + self.look(normed(x, self.norm, eps), normed(text, self.text_norm, eps) if self.text_norm else text)
        norm, up, down = self.feed
        y: Floats = x + down(gelu_erf(up(normed(x, norm, eps))))
        return y


def normed(x: Floats, norm: Norm, eps: float) -> Floats:
    """Layer norm of each row."""
    x = x - x.mean(axis=-1, keepdims=True)
    y: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * norm[0] + norm[1]
    return y


def means(x: Floats) -> Floats:
    """The mean of all rows."""
    y: Floats = x.mean(axis=0)
    return y


def unit(x: Floats) -> Floats:
    y: Floats = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-12))
    return y


class DecisionHead:
    """Scores the options of questions from the final hidden states of a text."""

    def __init__(self, file: GGUFFile) -> None:
        self._file, self._arch = file, file.str("general.architecture")
        key = f"{self._arch}.decision"
        if any(name.startswith(f"{key}.temperature") for name in file.metadata):
            raise UnsupportedModel(
                f"{file.path}: metadata keys '{key}.temperature': calibrated scores are not supported"
            )
        width = file.int(f"{self._arch}.embedding_length", low=1)
        self._eps = file.float(f"{self._arch}.attention.layer_norm_epsilon", 0.0, 1e-2, default=1e-5)
        heads = file.int(f"{key}.head_count", low=1, high=1 << 10)
        routing = file.int(f"{key}.routing_block_count", low=0, high=64)
        blocks = file.int(f"{key}.block_count", low=1, high=64)
        inner = self._size("decision.proj_memory.weight")
        if inner % heads:
            raise BadFile(f"{file.path}: metadata key '{key}.head_count': found {heads}, which does not divide {inner}")
        self._hidden = self._norm("decision.hidden_norm", width)
        self._norms = {name: self._norm(f"decision.{name}_norm", inner) for name in NORMS}
        self._maps = {name: self._take(f"decision.proj_{name}.weight", inner, width).T for name in MAPS}
        scored = self._size("decision.scorer.weight")
        self._scorer = self._affine("decision.scorer", scored, 4 * inner)
        self._scorer_out = self._affine("decision.scorer_out", 1, scored)
        self._scales = self._take("decision.scales", 3)
        self._types = self._take("token_types.weight", len(KINDS), inner)
        self._layers = [self._layer(f"dec.blk.{i}", inner, heads, own=i >= routing) for i in range(routing + blocks)]
        self._routing = routing
        output = self._named("output.weight" if "output.weight" in file.tensors else "token_embd.weight")
        rows = self._named("token_embd.weight").shape[0]
        check_shape(file, output, (rows, width))
        self._lexical = RowTable(file, output)

    @classmethod
    def of(cls, file: GGUFFile) -> "DecisionHead | None":
        """The head of a file; None if its model makes no decisions."""
        key = f"{file.str('general.architecture')}.decision.type"
        if key not in file.metadata:
            return None
        if file.str(key) != "clef":
            raise UnsupportedModel(f"{file.path}: metadata key '{key}': only 'clef' is supported")
        return cls(file)

    def __call__(self, hidden: Floats, asked: Asked) -> Floats:
        """The score of each option. `hidden` has a row for each token."""
        eps = self._eps
        rows = normed(hidden.astype(np.float32), self._hidden, eps)
        text, end = rows @ self._maps["memory"], rows[-1:]
        owners, ids = np.array([number for number, _ in asked.options]), np.array(asked.ids)
        spans = [span for _, span in asked.options]
        question, context = (np.stack([means(rows[s.start : s.stop]) for s in each]) for each in (asked.spans, spans))
        lexical = np.stack([means(self._lexical[ids[span.start : span.stop]]) for span in spans])
        options: Floats = context @ self._maps["option_context"] + lexical @ self._maps["option_lexical"]
        options = options + (question @ self._maps["option_question"])[owners]
        for layer in self._layers[: self._routing]:
            options = layer(options, text, eps)
        fields: Floats = question @ self._maps["question"]
        weights: Floats = fields @ options.T / np.float32(math.sqrt(fields.shape[1]))
        weights = softmax(np.where(owners == np.arange(len(fields))[:, None], weights, np.float32(-np.inf)))
        fields = fields + normed(weights @ options, self._norms["option_summary"], eps) + end @ self._maps["global"]
        fields = fields + self._types[[KINDS.index(one.kind) for one in asked.questions]]
        for layer in self._layers[self._routing :]:
            fields = layer(fields, text, eps)
        of_field = normed(fields, self._norms["field"], eps)[owners]
        options = normed(options, self._norms["option"], eps)
        prior = (unit(lexical) * unit(question + end)[owners]).sum(1)
        cosine = (unit(of_field) * unit(options)).sum(1)
        features = np.concatenate([of_field, options, of_field * options, np.abs(of_field - options)], axis=1)
        residual = self._scorer_out(gelu_erf(self._scorer(features)))[:, 0]
        scores: Floats = prior * self._scales[0] + (cosine * self._scales[1] + residual) * self._scales[2]
        if not np.isfinite(scores).all():
            raise BadNumbers.of("scores of options")
        return scores

    def _layer(self, at: str, width: int, heads: int, *, own: bool) -> Layer:
        def look(name: str) -> Look:
            q, k, v, out = (self._affine(f"{at}.{name}_{letter}", width, width) for letter in "qkvo")
            return Look(q, k, v, out, heads)

        inner = self._size(f"{at}.ffn_up.weight")
        feed = self._affine(f"{at}.ffn_up", inner, width), self._affine(f"{at}.ffn_down", width, inner)
        return Layer(
            (self._norm(f"{at}.attn_norm", width), look("attn")) if own else None,
            self._norm(f"{at}.cross_attn_norm", width),
            None if own else self._norm(f"{at}.cross_attn_norm_kv", width),
            look("cross_attn"),
            (self._norm(f"{at}.ffn_norm", width), *feed),
        )

    def _norm(self, name: str, width: int) -> Norm:
        return self._take(f"{name}.weight", width), self._take(f"{name}.bias", width)

    def _affine(self, name: str, rows: int, columns: int) -> Affine:
        return Affine(self._take(f"{name}.weight", rows, columns), self._take(f"{name}.bias", rows))

    def _size(self, name: str) -> int:
        shape = self._named(name).shape
        return shape[0] if len(shape) == 2 else 1

    def _named(self, name: str) -> TensorInfo:
        if name not in self._file.tensors:
            raise BadFile(f"{self._file.path}: tensor '{name}': found no such tensor, expected one")
        return self._file.tensors[name]

    def _take(self, name: str, *shape: int) -> Floats:
        return floats_of(self._file, self._named(name), shape, ones=True)
