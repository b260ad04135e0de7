"""Reads a projector file: its sizes, and the tensors of its tower's layers, by type of projector."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from ..errors import BadFile, UnsupportedModel
from ..gguf.file import GGUFFile
from ..models.dense import take_biases, take_gates, take_qkv, take_qkv_biases
from ..models.tensors import EPS, Tensors
from ..models.transformer import LARGEST_HEAD, FeedForward, Output, stored_size
from ..ops.vocabulary import Activation, AnyNorm, Attention, Cache, HeadNorms, LayerNorm, Rms, Weight
from .clipped import Clips, clips_of
from .family import Family
from .towers import WINDOWS, JoinedProjector, Layer, Mlp, PatchAttention, Projector

F = TypeVar("F")

QUICK = 1.702  # constant of the quick form of GELU
WINDOW = 112  # side of a window in pixels; not stated in files
SOUNDS = "a.", "mm.a."  # prefixes of tensors for sounds, which a file may have as well
SAMPLE = 4096  # bytes of each tensor that identify a file
TABLE = "v.position_embd.weight"
KERNELS = (
    "mm.patch_merger.weight",
    "mm.0.weight",
    "mm.2.weight",
    "v.sam.patch_embd.weight",
    "v.sam.neck.0.weight",
)  # convolutions over blocks in some projectors
QUERIES = "resampler.query"  # a tensor of learned rows that attend to patches
CACHE = "v.kv"  # one cache for all layers, as each layer needs its keys only until the next begins


def family_of(file: GGUFFile, part: str, families: Mapping[str, F], what: str) -> tuple[str, F]:
    """The type of a part of a projector file, and its family. `what` names such projectors in the error."""
    kind = file.str("clip.projector_type", default="") or file.str(f"clip.{part}.projector_type", default="")
    if kind not in families:
        known = ", ".join(sorted(families))
        raise UnsupportedModel(f"{file.path}: {what} of type '{kind[:40]}' are not supported; known: {known}")
    return kind, families[kind]


def identity_of(file: GGUFFile, *what: object) -> bytes:
    """A digest of the names and the beginnings of all tensors, and of `what`."""
    identity = hashlib.sha256(repr((*what, sorted(file.tensors))).encode())
    for tensor in file.tensors.values():
        identity.update(file.read(tensor, 0, min(SAMPLE, tensor.nbytes)))
    return identity.digest()


class TowerFile:
    """A projector file whose vision tower is being read."""

    section, at = "clip.vision", "v"  # prefixes of keys and of tensors

    def __init__(self, file: GGUFFile, family: Family) -> None:
        self.file, self.family = file, family
        self.width = self.size("embedding_length", 1 << 14)
        self.heads = self.size("attention.head_count", 1 << 10)
        self.count = self.size("block_count", 1 << 10)
        self.eps = family.eps or file.float(f"{self.section}.attention.layer_norm_epsilon", *EPS)
        self.window, self.pattern = 0, 1
        self.clips: Clips = {}
        self._begin()
        self.tensors.check_divides(f"{self.section}.attention.head_count", self.heads, self.width, "numbers of a row")

    def _begin(self) -> None:
        """Reads the sizes of a vision tower, before its layers."""
        file, family = self.file, self.family
        self.patch = family.patch or file.int("clip.vision.patch_size", low=1, high=256)
        self.merge = file.int(family.merge_key, low=1, high=16, default=family.merge)
        self.as_matrices([*self.patch_names, *KERNELS])
        self.tensors = Tensors(file, SOUNDS)
        self.window, self.pattern = self._windows()
        self._leave_out_unused()
        self.clips = clips_of(file, self.tensors)

    def _leave_out_unused(self) -> None:
        for _ in range(self.family.unused):
            if self.count < 2:
                raise self.tensors.bad("metadata key 'clip.vision.block_count'", f"{self.count}", "more layers")
            self.count -= 1
            self.tensors.skip(*(name for name in self.file.tensors if name.startswith(f"{self.at}.blk.{self.count}.")))

    def size(self, key: str, high: int) -> int:
        """A size from the metadata."""
        return self.file.int(f"{self.section}.{key}", low=1, high=high)

    def _windows(self) -> tuple[int, int]:
        """The side of a window in blocks, and the period of layers with full attention; 0 and 1 without windows."""
        if QUERIES in self.file.tensors:  # every layer sees all patches, but not the padding rows of a step
            return 0, self.count + 1
        if not self.family.windows:
            return 0, 1
        if self.family.period:  # a window has the size of the table of positions
            side = math.isqrt(self.tensors.dimension(TABLE, 0))
            if side % self.merge:
                raise self.tensors.bad(f"tensor '{TABLE}'", f"{side} rows of positions", f"a multiple of {self.merge}")
            return side // self.merge, self.family.period
        pattern = self.file.int("clip.vision.n_wa_pattern", low=0, high=1 << 10)
        return (max(1, WINDOW // self.patch // self.merge), pattern) if pattern else (0, 1)

    @property
    def block(self) -> int:
        """Patches of a block."""
        return self.merge**2

    def as_matrices(self, names: Iterable[str], axes: int = 1) -> None:
        """Reads kernels such as [D, 3, p, p] as matrices [D, 3 · p · p]; the first `axes` become the rows."""
        tensors = dict(self.file.tensors)
        for name in names:
            if name in tensors and len(tensors[name].shape) > 2:
                shape = tensors[name].shape
                if tensors[name].format.name not in ("F32", "F16", "BF16"):
                    raise BadFile(f"{self.file.path}: tensor '{name}': its format must be F32, F16 or BF16")
                tensors[name] = replace(tensors[name], shape=(math.prod(shape[:axes]), math.prod(shape[axes:])))
        self.file.tensors = MappingProxyType(tensors)

    @property
    def patch_names(self) -> list[str]:
        """Names of the matrices that embed patches."""
        return ["v.patch_embd.weight", "v.patch_embd.weight.1"][: self.family.frames]

    def norm(self, name: str, size: int = 0) -> AnyNorm:
        """A norm of the residual stream, or of `size` numbers."""
        weight = self.tensors.take(f"{name}.weight", size or self.width)
        bias = self.tensors.find(f"{name}.bias", size or self.width)
        return LayerNorm(weight, bias, self.eps) if self.family.norm == "layer" else Rms(weight, self.eps, bias)

    def optional_norm(self, name: str) -> AnyNorm | None:
        """The norm of that name; None if the file lacks it."""
        return self.norm(name) if f"{name}.weight" in self.tensors else None

    def mlp(self, first: str, second: str, width: int, out: int = 0, then: Activation = "gelu") -> Mlp:
        """An MLP that reads `width` numbers. The file states the rows of its second matrix, or `out` does."""
        tensors = self.tensors
        inner = tensors.dimension(f"{first}.weight", 0)
        out = out or tensors.dimension(f"{second}.weight", 0)
        return Mlp(
            tensors.take(f"{first}.weight", inner, width),
            tensors.find(f"{first}.bias", inner),
            tensors.take(f"{second}.weight", out, inner),
            tensors.find(f"{second}.bias", out),
            then,
        )

    def layers(self) -> tuple[Layer, ...]:
        """All layers of the tower."""
        size = self.width // self.heads
        if size > LARGEST_HEAD or size % 2:
            raise UnsupportedModel(f"{self.file.path}: heads of size {size} are not supported")
        stored = stored_size(size)
        scale = 1.0 if self.family.head_norms else size**-0.5
        how = Attention(self.heads, None, scale, causal=False, head=size if stored != size else 0)
        cache = Cache(CACHE, self.heads, stored)
        windowed = replace(how, bounds=WINDOWS)
        hows = [how if (i + 1) % self.pattern == 0 else windowed for i in range(self.count)]
        if self.family.period:
            hows[-1] = how
        quick = QUICK if self.activation() == "none" and not self.family.erf else 0.0
        return tuple(
            Layer(self._attention(i, hows[i], cache, size), self._feed(i), self._scales(i), quick, self.family.erf)
            for i in range(self.count)
        )

    def _scales(self, i: int) -> tuple[Weight | None, Weight | None]:
        find, at = self.tensors.find, f"{self.at}.blk.{i}"
        return find(f"{at}.ls1.weight", self.width), find(f"{at}.ls2.weight", self.width)

    def _attention(self, i: int, how: Attention, cache: Cache, size: int) -> PatchAttention:
        at, width, tensors = f"{self.at}.blk.{i}.attn", self.width, self.tensors
        pairing = self.family.pairing if self.family.plane else None
        return PatchAttention(
            self.norm(f"{self.at}.blk.{i}.ln1"),
            take_qkv(tensors, at, (width,) * 3, width),
            take_qkv_biases(tensors, at, (width,) * 3),
            Output(
                tensors.take(f"{at}_out.weight", width, width),
                tensors.find(f"{at}_out.bias", width),
                self._after(i, "attn"),
            ),
            cache,
            how,
            size,
            pairing,
            2 if self.family.plane == "apart" else 1,
            self._head_norms(at, size),
        )

    def _head_norms(self, at: str, size: int) -> HeadNorms | None:
        if not self.family.head_norms:
            return None
        q, k = (self.tensors.take(f"{at}_{name}_norm.weight", size) for name in "qk")
        return HeadNorms(self.eps, q, k, v=True)

    def _after(self, i: int, branch: str) -> Rms | None:
        """The norm after a branch of a layer, if the file has one."""
        weight = self.tensors.find(f"{self.at}.blk.{i}.{branch}_post_norm.weight", self.width)
        return None if weight is None else Rms(weight, self.eps)

    def _feed(self, i: int) -> FeedForward:
        at, tensors, width = f"{self.at}.blk.{i}.ffn", self.tensors, self.width
        up, down = f"{at}_up", f"{at}_down"
        if self.family.swaps and tensors.dimension(f"{down}.weight", 1) == width:
            inner = tensors.dimension(f"{down}.weight", 0)
            if tensors.dimension(f"{up}.weight", 0) == width:
                up, down = down, up
        inner = tensors.dimension(f"{up}.weight", 0)
        gates: Any
        if f"{at}_gate.weight" in tensors:
            if self.activation() == "none":
                raise UnsupportedModel(f"{self.file.path}: gates with the quick form of GELU are not supported")
            biases = take_biases(tensors, at, inner, ("gate", "up"))
            if self.clips:
                gates = tuple(tensors.take(f"{at}_{name}.weight", inner, width) for name in ("gate", "up"))
            else:
                gates = take_gates(tensors, at, inner, width)
        else:
            gates, biases = tensors.take(f"{up}.weight", inner, width), (tensors.find(f"{up}.bias", inner),)
        matrix, bias = tensors.take(f"{down}.weight", width, inner), tensors.find(f"{down}.bias", width)
        branch = Output(matrix, bias, self._after(i, "ffn"))
        return FeedForward(self.norm(f"{self.at}.blk.{i}.ln2"), gates, self.activation(), branch, biases)

    def activation(self) -> Activation:
        """The activation of feed-forwards; "none" for the fast approximation of GELU, which is a separate op."""
        if self.family.erf or self.family.quick:
            return "none"
        for key, activation in (("clip.use_gelu", "gelu"), ("clip.use_silu", "silu")):
            if self.file.bool(key, default=False):
                return activation  # type: ignore[return-value]
        return "none"

    def taps(self) -> dict[int, Projector]:
        """The projectors of deepstack rows, by layer."""
        found: dict[int, Projector] = {}
        for i in range(self.count):
            at, width = f"v.deepstack.{i}", self.width * self.block
            if f"{at}.fc1.weight" in self.tensors:
                norm = self.norm(f"{at}.norm", width)
                assert isinstance(norm, LayerNorm), "this family has layer norms"
                found[i] = JoinedProjector(self.block, self.mlp(f"{at}.fc1", f"{at}.fc2", width), norm)
        return found
