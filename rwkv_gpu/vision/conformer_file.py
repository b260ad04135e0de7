"""Reads the Conformer of a projector file, by type of projector."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
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
from .mel import FFT, WINDOW, even_mel, loud_mel, scaled_mel
from .sound_tower import ExactMlp, SoundFamily, SoundFile
from .towers import JoinedProjector, Projector

Array = npt.NDArray[Any]
Scales = Sequence[tuple[str, float]]


@dataclass(frozen=True, eq=False)
class Distances:
    """How scores depend on the distance of a query and a key."""

    matrix: str  # name of each layer's matrix, which multiplies the sines and cosines of a distance
    width: int  # number of sines and cosines of a distance; 0: the width of the tower
    seen: range  # the distances that occur
    waves: Callable[[Array, int], Array]  # computes the sines and cosines of distances, [n, width]
    frequencies: Array  # frequencies of the rotating pairs; sums of their waves equal `waves` at all distances

    def pairs(self, matrix: Array, heads: int) -> Array:
        """The matrix of each head that computes pairs from its query. [H, 2 · F, N]"""
        by_head = matrix.reshape(heads, -1, matrix.shape[1])
        return np.asarray(_as_sums(self, matrix.shape[1]) @ by_head.transpose(0, 2, 1))


@cache
def _as_sums(how: Distances, width: int) -> Array:
    """The waves of any distance as sums of cosines, then negative sines, of all frequencies. [2 · F, width]"""
    distances = np.array(how.seen)
    angles = distances[:, None] * how.frequencies
    turning = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return np.asarray(np.linalg.lstsq(turning, how.waves(distances, width), rcond=1e-9)[0])


@dataclass(frozen=True)
class ConformerFamily(SoundFamily):
    """The properties of a type of Conformer."""

    convolutions: Convolutions = field(kw_only=True)
    distances: Distances = field(kw_only=True)
    embed: str = ""  # the matrix that reads the rows of the convolutions
    window: int = 0  # rows that a row sees: itself and rows before it; 0: all
    softcap: float = 0.0
    scales: Scales = ()  # scales of queries, besides 1 / sqrt(N), and of keys: name of a layer's vector, and a factor
    biases: tuple[str, ...] = ()  # biases of queries: for content, and for distances
    norms: tuple[str, str] = "", ""  # norms before and after the convolution of a layer
    centred: bool = False  # whether the convolution sees rows on both sides; then its norm is an affine map
    eps: float = 0.0  # eps of norms; 0: the file's


class ConformerFile(SoundFile):
    """A projector file whose Conformer is being read."""

    family: ConformerFamily

    def _begin(self) -> None:
        self.as_matrices([f"a.blk.{i}.conv_dw.weight" for i in range(self.count)], axes=3)
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
        """One of the two feed-forwards of a layer. The result of each is halved."""
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
            *self._query(at, heads, pairs, size),
            tensors.compute(f"{at}.key", (heads, each, size), partial(padded_keys, heads, pairs, size)),
            tensors.compute(f"{at}.key_bias", (heads * each,), partial(unit_pairs, heads, pairs, size)),
            self._output(f"{at}.attn_out", self._rms(f"{at}.attn_post_norm")),
            Cache("a.kv", heads, stored),
            how,
            size,
        )

    def _query(self, at: str, heads: int, pairs: int, size: int) -> tuple[Weight, Weight | None]:
        """The matrices that compute pairs and a scaled query from each head's query, and their biases."""
        family, tensors, each = self.family, self.tensors, pairs + size
        name = f"{at}.{family.distances.matrix}"
        matrix = name, (self.width, family.distances.width or self.width)
        if matrix[1][1] % 2:
            raise tensors.bad(f"tensor '{name}'", f"{matrix[1][1]} columns", "an even number")
        names = [f"{at}.{name}" for name, _ in family.scales]
        found = [(name, (size,)) for name in names if name in tensors]
        factors, present = [factor for _, factor in family.scales], [name in tensors for name in names]
        make = partial(_queries, family.distances, heads, factors, present)
        query, bias = tensors.compute(f"{at}.query", (heads, each, size), make, matrix, *found), None
        if family.biases:
            of_both = [(f"{at}.{name}", (heads, size)) for name in family.biases]
            make = partial(_query_bias, family.distances, heads)
            bias = tensors.compute(f"{at}.query_bias", (heads * each,), make, matrix, *of_both)
        return query, bias

    def _convolution(self, i: int) -> Convolution:
        at, tensors, width = f"a.blk.{i}", self.tensors, self.width
        before, after = (f"{at}.{name}" for name in self.family.norms)
        name = f"{at}.conv_dw.weight"
        count, bias = tensors.dimension(name, 1), None
        if not 2 <= count <= MAX_TAPS or (self.family.centred and count % 2 == 0):
            kind = "an odd number" if self.family.centred else "a number"
            raise tensors.bad(f"tensor '{name}'", f"{count} columns", f"{kind} from 2 to {MAX_TAPS}")
        taps: Weight
        if self.family.centred and f"{after}_mean" in tensors:  # then a batch norm with the moments of training
            scale, mean, var = ((f"{after}{part}", (width,)) for part in (".weight", "_mean", "_var"))
            taps = tensors.compute(
                f"{at}.taps", (width * count,), lambda x, w, var: x * (w / np.sqrt(var))[:, None],
                (name, (width, count)), scale, var,
            )  # fmt: skip
            bias = tensors.compute(
                f"{at}.shift", (width,), lambda w, b, mean, var: b - mean * w / np.sqrt(var),
                scale, (f"{after}.bias", (width,)), mean, var,
            )  # fmt: skip
        elif self.family.centred:  # and what follows it scales and shifts each column
            scale = f"{after}.weight", (width,)
            every = scale, (f"{after}.bias", (width,)), (f"{at}.conv_dw.bias", (width,))
            taps = tensors.compute(f"{at}.taps", (width * count,), _scaled_taps, (name, (width, count)), scale)
            bias = tensors.compute(f"{at}.shift", (width,), lambda w, b, inner: w * inner + b, *every)
        else:
            taps = tensors.take_flat(name, width, count)
        return Convolution(
            self.norm(before),
            tensors.take(f"{at}.conv_pw1.weight", 2 * width, width),
            tensors.find(f"{at}.conv_pw1.bias", 2 * width),
            taps,
            bias,
            None if self.family.centred else self._rms(after),
            self._output(f"{at}.conv_pw2"),
            None if self.family.centred else State(f"{at}.conv", (count - 1, width)),
        )


def _queries(
    distances: Distances, heads: int, factors: Sequence[float], present: Sequence[bool], matrix: Array, *vectors: Array
) -> Array:
    """Rows for the pairs of a query, then for the query, which also gets the scales of keys. [H, 2 · F + N, N]"""
    each, size = iter(vectors), len(matrix) // heads
    scales = [f * (next(each) if found else np.ones(size)) for f, found in zip(factors, present, strict=True)]
    query, key = scales or (1.0, 1.0)
    query = query * size**-0.5
    own = np.tile(np.eye(size) * (query * key), (heads, 1, 1))
    return np.concatenate([distances.pairs(matrix, heads) * query, own], axis=1)


def _query_bias(distances: Distances, heads: int, matrix: Array, content: Array, position: Array) -> Array:
    """The biases of a head: for its pairs, multiplied by their matrix, and for its query. [H · (2 · F + N)]"""
    pairs = np.einsum("hpn,hn->hp", distances.pairs(matrix, heads), position)
    added: Array = np.concatenate([pairs, content], axis=1) * content.shape[1] ** -0.5
    return added


def _scaled_taps(taps: Array, scale: Array) -> Array:
    scaled: Array = taps * scale[:, None]
    return scaled


def padded_keys(heads: int, pairs: int, size: int) -> Array:
    """Rows of zeros for the pairs, then the key itself. [H, 2 · F + N, N]"""
    return np.tile(np.eye(pairs + size, size, -pairs), (heads, 1, 1))


def unit_pairs(heads: int, pairs: int, size: int) -> Array:
    """(1, 0) for each pair of a key: first all ones, then zeros. [H · (2 · F + N)]"""
    return np.tile(np.arange(pairs + size) < pairs // 2, heads)


def _gemma_waves(distances: Array, width: int) -> Array:
    """Sines, then cosines. [n, width]"""
    angles = distances[:, None] * 10000.0 ** (-np.arange(width // 2) / max(1, width // 2 - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _lfm_waves(distances: Array, width: int) -> Array:
    """A sine and a cosine of each frequency in turn. [n, width]"""
    angles = distances[:, None] * 10000.0 ** (-2 * np.arange(width // 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(distances), -1)


def _frequencies(width: int, high: int, low: int) -> Array:
    """The `high` highest frequencies, and `low` for all others, which differ little over the longest distance."""
    exact = 10000.0 ** (-2 * np.arange(high + 1) / width)
    return np.concatenate([exact[:-1], exact[-1] * np.linspace(1, 0, low)])


def _lfm(source: SoundFile) -> Projector:
    # Tensors for speech
    source.tensors.skip("a.position_embd.weight", "a.position_embd_norm.weight", "a.embd_to_logits.weight")
    norm = source.norm("mm.a.mlp.0")
    return ExactMlp(source.mlp("mm.a.mlp.1", "mm.a.mlp.3", source.width), norm)


def _parakeet(source: SoundFile) -> Projector:
    tensors, width, up, down = source.tensors, source.width, "mm.a.mlp.1", "mm.a.mlp.2"
    if PARAKEET_WIDTH % width:
        raise tensors.bad("metadata key 'clip.audio.embedding_length'", f"{width}", f"a divisor of {PARAKEET_WIDTH}")
    if source.file.int("clip.audio.subsampling_factor", low=1, high=64) != 8:
        raise UnsupportedModel(f"{source.file.path}: only a subsampling factor of 8 is supported")
    norm = Rms(tensors.take("mm.a.norm_pre.weight", width), PARAKEET_EPS)
    return JoinedProjector(1, source.mlp(up, down, width, then="relu2"), each=norm)


def _gemma(source: SoundFile) -> Projector:
    tensors, width = source.tensors, source.width
    first, matrix = "a.pre_encode.out", "mm.a.input_projection.weight"
    out = tensors.dimension(matrix, 0)
    read = tensors.dimension(matrix, 1) if f"{first}.weight" in tensors else width
    return NormedProjector(
        tensors.find(f"{first}.weight", read, width),
        tensors.find(f"{first}.bias", read),
        Rms(tensors.find("mm.a.soft_emb_norm.weight", read), source.eps),
        tensors.take(matrix, out, read),
    )


MAX_TAPS = 64  # of a convolution
LFM_SECONDS, LFM_WIDTH = 150, 512
PARAKEET_SECONDS, PARAKEET_WIDTH, PARAKEET_EPS = 100, 1024, 1e-6
LFM_STEMS = tuple(f"a.conv1d.{number}" for number in (0, 2, 3, 5, 6))
LFM_CONVOLUTIONS = Convolutions(even_mel, LFM_SECONDS, LFM_STEMS, (LFM_STEMS[0], LFM_STEMS[2], LFM_STEMS[4]), 3, True)
PARAKEET_CONVOLUTIONS = replace(
    LFM_CONVOLUTIONS, spectrogram=scaled_mel, seconds=PARAKEET_SECONDS,
    tables={"a.mel_filters": FFT // 2 + 1, "a.window": WINDOW},
)  # fmt: skip
GEMMA_ROWS = 12  # that a row sees
GEMMA_STEMS = "a.conv1d.0", "a.conv1d.1"
CONFORMERS = {
    "lfm2a": ConformerFamily(
        _lfm, convolutions=LFM_CONVOLUTIONS, embed="a.pre_encode.out",
        distances=Distances(
            "linear_pos.weight", LFM_WIDTH, range(-LFM_CONVOLUTIONS.rows, LFM_CONVOLUTIONS.rows + 1, 3), _lfm_waves,
            _frequencies(LFM_WIDTH, 104, 24),
        ),  # frequencies up to 1 are known from every third distance
        biases=("pos_bias_u", "pos_bias_v"), norms=("norm_conv", "conv_norm"),
        centred=True,
    ),
    "parakeet": ConformerFamily(
        _parakeet, convolutions=PARAKEET_CONVOLUTIONS, embed="a.pre_encode.out",
        distances=Distances(
            "linear_pos.weight", 0, range(-PARAKEET_CONVOLUTIONS.rows, PARAKEET_CONVOLUTIONS.rows + 1, 3), _lfm_waves,
            _frequencies(PARAKEET_WIDTH, 160, 32),
        ),
        biases=("pos_bias_u", "pos_bias_v"), norms=("norm_conv", "conv_norm"), centred=True,
    ),
    "gemma4a": ConformerFamily(
        _gemma, begin="<|audio>", end="<audio|>", norm="rms", eps=1e-6,
        convolutions=Convolutions(loud_mel, 30, GEMMA_STEMS, GEMMA_STEMS, 2, False),
        embed="a.input_projection",
        # Waves with a period of 16 can add up to any 12 numbers.
        distances=Distances("attn_k_rel.weight", 0, range(GEMMA_ROWS), _gemma_waves, np.pi / 8 * np.arange(8)),
        window=GEMMA_ROWS, softcap=50.0, norms=("conv_norm", "norm_conv"),
        scales=(("per_dim_scale.weight", 1 / math.log(2)), ("per_dim_k_scale.weight", math.log2(1 + math.e))),
    ),
}  # fmt: skip
