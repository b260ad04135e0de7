"""Reads the Conformer of a projector file, by type of projector."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedModel
from ..models.dense import take_qkv, take_qkv_biases
from ..models.transformer import LARGEST_HEAD, FeedForward, Output, stored_size
from ..ops.vocabulary import Attention, Cache, Rms, State, Weight
from .clipped import clips_of
from .conformer import ConformerTower, Convolution, Layer, NormedProjector, RelativeAttention
from .conformer_stem import ConformerStem, Convolutions, take_convolutions
from .mel import loud_mel
from .sound_tower import SoundFamily, SoundFile
from .towers import Projector

Array = npt.NDArray[Any]
Scales = Sequence[tuple[str, float]]


@dataclass(frozen=True, eq=False)
class Distances:
    """How scores depend on the distance of a query and a key."""

    matrix: str  # of each layer: multiplies the waves of a distance
    seen: range  # the distances that occur
    waves: Callable[[Array, int], Array]  # of some distances, [n, width]
    frequencies: Array  # of the pairs that turn; their waves add up to those at all these distances

    def pairs(self, matrix: Array, heads: int) -> Array:
        """The matrix of each head that makes pairs of its query. [H, 2 · F, N]"""
        distances, by_head = np.array(self.seen), matrix.reshape(heads, -1, matrix.shape[1])
        angles = distances[:, None] * self.frequencies
        turning = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        sums = np.linalg.lstsq(turning, self.waves(distances, matrix.shape[1]), rcond=1e-9)[0]
        return np.asarray(sums @ by_head.transpose(0, 2, 1))


@dataclass(frozen=True)
class ConformerFamily(SoundFamily):
    """The properties of a type of Conformer."""

    convolutions: Convolutions = field(kw_only=True)
    distances: Distances = field(kw_only=True)
    embed: str = ""  # the matrix that reads the rows of the convolutions
    window: int = 0  # rows that each sees, itself and those before; 0: all
    softcap: float = 0.0
    scales: Scales = ()  # of queries, in addition to 1 / sqrt(N), and of keys: a vector of each layer, and a factor
    norms: tuple[str, str] = "", ""  # before the convolution of a layer, and after it
    eps: float = 0.0  # of norms, in place of the file's


class ConformerFile(SoundFile):
    """A projector file whose Conformer is being read."""

    family: ConformerFamily

    def _begin(self) -> None:
        self._take_sounds()
        self.eps = self.family.eps or self.eps
        self.clips = clips_of(self.file, self.tensors)

    def tower(self) -> ConformerTower:  # type: ignore[override]
        """The tower and its projector."""
        family, tensors = self.family, self.tensors
        columns = take_convolutions(tensors, self.file, self.mels, family.convolutions)
        embed = tensors.take(f"{family.embed}.weight", self.width, columns)
        bias = tensors.find(f"{family.embed}.bias", self.width)
        layers, projector = tuple(map(self._layer, range(self.count))), family.read(self)
        return ConformerTower(
            tuple(tensors.taken), embed, bias, layers, projector, self.clips, family.convolutions.rows
        )

    def stem(self) -> ConformerStem:
        family = self.family
        return ConformerStem(Path(self.file.path), self.mels, family.convolutions, family.distances.frequencies)

    def _layer(self, i: int) -> Layer:
        at = f"a.blk.{i}"
        return Layer(
            self._half(i, ""), self._relative(i), self._convolution(i), self._half(i, "_1"),
            self.optional_norm(f"{at}.ln2"),
        )  # fmt: skip

    def _half(self, i: int, suffix: str) -> FeedForward:
        """One of the two feed-forwards of a layer, each of which counts half."""
        at, tensors, width = f"a.blk.{i}.ffn", self.tensors, self.width
        up, down = f"{at}_up{suffix}", f"{at}_down{suffix}"
        inner = tensors.dimension(f"{up}.weight", 0)
        matrices = tensors.take(f"{up}.weight", inner, width), tensors.take(f"{down}.weight", width, inner)
        biases = tensors.find(f"{up}.bias", inner), tensors.find(f"{down}.bias", width)
        branch = Output(matrices[1], biases[1], self._rms(f"{at}_post_norm{suffix}"), scale=0.5)
        return FeedForward(self.norm(f"{at}_norm{suffix}"), matrices[0], "silu", branch, (biases[0],))

    def _rms(self, name: str) -> Rms | None:
        """A norm without bias, if the file has it."""
        weight = self.tensors.find(f"{name}.weight", self.width)
        return None if weight is None else Rms(weight, self.eps)

    def _output(self, name: str, norm: Rms | None = None) -> Output:
        width = self.width
        return Output(self.tensors.take(f"{name}.weight", width, width), self.tensors.find(f"{name}.bias", width), norm)

    def _relative(self, i: int) -> RelativeAttention:
        family, tensors, width, heads = self.family, self.tensors, self.width, self.heads
        at, pairs, size = f"a.blk.{i}", 2 * len(family.distances.frequencies), width // heads
        each = pairs + size
        stored = stored_size(each)
        if stored > LARGEST_HEAD:
            raise UnsupportedModel(f"{self.file.path}: heads of size {size} are not supported in a Conformer")
        pre = self.optional_norm(f"{at}.attn_pre_norm") or self.norm(f"{at}.ln1")
        how = Attention(
            heads, None, 1.0, window=family.window, softcap=family.softcap, causal=bool(family.window),
            head=each if each != stored else 0,
        )  # fmt: skip
        return RelativeAttention(
            pre,
            take_qkv(tensors, f"{at}.attn", (width,) * 3, width),
            take_qkv_biases(tensors, f"{at}.attn", (width,) * 3),
            self._query(at, heads, pairs, size),
            None,
            tensors.compute(f"{at}.key", (heads, each, size), partial(_keys, heads, pairs, size)),
            tensors.compute(f"{at}.key_bias", (heads * each,), partial(_key_bias, heads, pairs, size)),
            self._output(f"{at}.attn_out", self._rms(f"{at}.attn_post_norm")),
            Cache("a.kv", heads, stored),
            how,
            size,
        )

    def _query(self, at: str, heads: int, pairs: int, size: int) -> Weight:
        """The matrices that make pairs and a scaled query of the query of each head."""
        family, tensors = self.family, self.tensors
        matrix = f"{at}.{family.distances.matrix}"
        columns = tensors.dimension(matrix, 1)
        names = [f"{at}.{name}" for name, _ in family.scales]
        found = [(name, (size,)) for name in names if name in tensors]
        present = [name in tensors for name in names]
        make = partial(_queries, family.distances, heads, [factor for _, factor in family.scales], present)
        shape = heads, pairs + size, size
        return tensors.compute(f"{at}.query", shape, make, (matrix, (self.width, columns)), *found)

    def _convolution(self, i: int) -> Convolution:
        at, tensors, width = f"a.blk.{i}", self.tensors, self.width
        before, after = (f"{at}.{name}" for name in self.family.norms)
        taps = tensors.dimension(f"{at}.conv_dw.weight", 1)
        return Convolution(
            self.norm(before),
            tensors.take(f"{at}.conv_pw1.weight", 2 * width, width),
            tensors.take_flat(f"{at}.conv_dw.weight", width, taps),
            self._rms(after),
            self._output(f"{at}.conv_pw2"),
            State(f"{at}.conv", (taps - 1, width)),
        )


def _queries(
    distances: Distances, heads: int, factors: Sequence[float], present: Sequence[bool], matrix: Array, *vectors: Array
) -> Array:
    """The pairs of a query above the query itself, which has the scales of keys as well. [H, 2 · F + N, N]"""
    each = iter(vectors)
    size = len(matrix) // heads
    query, key = (f * (next(each) if found else np.ones(size)) for f, found in zip(factors, present, strict=True))
    query = query * size**-0.5
    own = np.broadcast_to(np.diag(query * key), (heads, size, size))
    return np.concatenate([distances.pairs(matrix, heads) * query, own], axis=1)


def _keys(heads: int, pairs: int, size: int) -> Array:
    """Zeros above the key itself. [H, 2 · F + N, N]"""
    return np.tile(np.eye(pairs + size, size, -pairs), (heads, 1, 1))


def _key_bias(heads: int, pairs: int, size: int) -> Array:
    """(1, 0) as each pair of a key, first all ones. [H · (2 · F + N)]"""
    return np.tile(np.arange(pairs + size) < pairs // 2, heads)


def _gemma_waves(distances: Array, width: int) -> Array:
    """Sines, then cosines. [n, width]"""
    angles = distances[:, None] * 10000.0 ** (-np.arange(width // 2) / max(1, width // 2 - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _gemma(source: SoundFile) -> Projector:
    tensors, width = source.tensors, source.width
    first, matrix = "a.pre_encode.out", "mm.a.input_projection.weight"
    out, read = (tensors.dimension(matrix, axis) for axis in range(2))
    return NormedProjector(
        tensors.find(f"{first}.weight", read, width),
        tensors.find(f"{first}.bias", read),
        Rms(tensors.find("mm.a.soft_emb_norm.weight", read), source.eps),
        tensors.take(matrix, out, read),
    )


GEMMA_ROWS = 12  # that a row sees
GEMMA_STEMS = "a.conv1d.0", "a.conv1d.1"
CONFORMERS = {
    "gemma4a": ConformerFamily(
        _gemma, begin="<|audio>", end="<audio|>", norm="rms", eps=1e-6,
        convolutions=Convolutions(loud_mel, 30, GEMMA_STEMS, GEMMA_STEMS, 2, by_channel=False),
        embed="a.input_projection",
        # Any 12 numbers are a sum of waves with a period of 16.
        distances=Distances("attn_k_rel.weight", range(GEMMA_ROWS), _gemma_waves, np.pi / 8 * np.arange(8)),
        window=GEMMA_ROWS, softcap=50.0, norms=("conv_norm", "norm_conv"),
        scales=(("per_dim_scale.weight", 1 / math.log(2)), ("per_dim_k_scale.weight", math.log2(1 + math.e))),
    ),
}  # fmt: skip
