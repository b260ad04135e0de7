"""Matrix products as models ask for them: one matrix, shards of one, several at once, gate and up in pairs."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..gpu.plan import Slice
from ..kernels.tuning import BYTES, GemmConfig
from .held import Held
from .integers import CHUNK, Roundable
from .mixing import MIXING_BUFFERS, Mixing
from .products import MATRICES, Product, ProductRecorder, owned_blocks
from .staged import staging
from .values import Integers, Operand, Value, Vectors, stack
from .vocabulary import Activation, LayerNorm, Rms, Weight

MOMENTS = 8  # bytes of what a subgroup finds of a row while it norms it
MIXING_GROUPS = 300  # workgroups that may each norm and mix several rows anew
LATE = 512  # columns of matrices that may as well be multiplied by what reads the products: second halves of LoRAs


@dataclass(frozen=True)
class Asked:
    """One of several products that a model asks for at once."""

    x: Value
    weight: Weight
    then: Activation
    bias: Weight | None
    norm: Rms | LayerNorm | Mixing | None = None


@dataclass(frozen=True, eq=False)
class HeldProducts(Held):
    """Several products, of one format and with inputs in one stack, by one dispatch."""

    asked: tuple[Asked, ...] = ()
    ys: tuple[Value, ...] = ()  # their results


class LinearRecorder(ProductRecorder):
    """Ops that multiply by matrices."""

    def linear(
        self,
        x: Value,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Value | None = None,
        norm: Rms | LayerNorm | None = None,
    ) -> Value:
        y = Value((self.rows, weight.shape[0]))
        if not isinstance(norm, LayerNorm):
            [x], norm = self._normed([x], norm, [weight])
        elif not (self.alone and self.tuning.fuses_token_shift and self._mixes([Asked(x, weight, then, bias)])):
            x, norm = self.layer_norm(x, norm.weight, norm.bias, norm.eps), None
        [asked] = self._mixing([Asked(x, weight, then, bias, norm)])
        shape = None if bias or add or asked.norm else self._giving(x, weight)
        if shape:
            multiply = partial(self._multiply_one, asked, y, shape=shape)
            rounded = partial(self._multiply_rounded, asked, y, shape)
            self.hold(Roundable(multiply, y, widths={0: weight.shape[0]}, round=rounded, size=BYTES[shape.activations]))
        else:
            self._multiply_one(asked, y, add)
        return y

    def glu(self, x: Value, weight: Weight, then: Activation, *, norm: Rms | None = None) -> Value:
        out = weight.shape[0] // 2
        y = Value((self.rows, out))
        [x], norm = self._normed([x], norm, [weight])
        for shard in self.weights[weight.name].shards:
            product = Product(shard, weight.shape[1], 0, shard.first // 2, out, 0, then)
            self._multiply(weight.name, [product], {"x": x, "y": y, "w": shard.slice}, norm, out="gated_pairs")
        return y

    def linears(
        self,
        xs: Sequence[Value],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
        norm: Rms | None = None,
    ) -> tuple[Value, ...]:
        thens = then or ["none"] * len(weights)
        biases = bias or [None] * len(weights)
        xs, norm = self._normed(xs, norm, weights)
        asked = self._mixing([Asked(*one, norm) for one in zip(xs, weights, thens, biases, strict=True)])
        together = self._together(asked)
        ys: dict[int, Value] = {}
        # What one dispatch writes is one stack, so that dispatches do not wait for each other. But a v in a format of
        # its own lies with q and k.
        overlap = all(len(each) > 1 for each in together)
        for members in together if overlap else [list(range(len(asked)))]:
            ys.update(zip(members, stack(self.rows, [weights[i].shape[0] for i in members])[1], strict=True))
        results = tuple(ys[i] for i in range(len(asked)))
        if self._may_wait(asked) and len(together) == 1:
            multiply = partial(self._multiply_all, asked, results)
            self.hold(HeldProducts(multiply, results[0].root, asked=tuple(asked), ys=results))
            return results
        parts = [([asked[i] for i in members], [ys[i] for i in members]) for members in together]
        # Of several rows, kernels that overlap as two are slower as one, with the registers of both.
        if len(parts) > 1 and self.rows <= self.tuning.merged_rows and (self.alone or not overlap):
            shapes = self._shapes([some for some, _ in parts])
            with self.merged():
                for (some, outs), shape in zip(parts, shapes, strict=True):
                    self._multiply_all(some, outs, shape)
        else:
            for some, outs in parts:
                self._multiply_all(some, outs)
        return results

    def _shapes(self, together: Sequence[Sequence[Asked]]) -> Sequence[GemmConfig | None]:
        """What computes products that run side by side: workgroups of one size, as the most work has."""
        every = [[shard for one in asked for shard in self.weights[one.weight.name].shards] for asked in together]
        whole = all(len(shards) == len(asked) for shards, asked in zip(every, together, strict=True))
        if not whole:
            return [None] * len(together)
        widths = [max(one.weight.shape[1] for one in asked) for asked in together]
        own = [self._shape(shards, width) for shards, width in zip(every, widths, strict=True)]
        lead = own[max(range(len(own)), key=lambda i: sum(shard.slice.nbytes for shard in every[i]))]
        alike = [self.tuning.merged(lead, shape, shards[0].packed) for shape, shards in zip(own, every, strict=True)]
        fits = all(shape.workgroup_bytes <= self.device.capabilities.max_workgroup_memory for shape in alike)
        return alike if fits else own

    def _may_wait(self, asked: Sequence[Asked]) -> bool:
        """Whether what reads these products may be faster to compute them, too."""
        few = (self.single or self.alone) and self.rows <= self.tuning.lora_fusion_rows
        return few and len(asked) > 1 and not any(one.norm or one.weight.shape[1] > LATE for one in asked)

    def _normed(
        self, xs: Sequence[Value], norm: Rms | None, weights: Sequence[Weight]
    ) -> tuple[Sequence[Value], Rms | None]:
        """What products read: x, with a norm that their kernel does on the way, or normed before."""
        if norm is None:
            return xs, None
        width = xs[0].shape[1]
        outs = (sum(weight.shape[0] for weight in weights), *(weight.shape[0] for weight in weights))
        cases = itertools.product((16, 32), outs, (False, True))
        shapes = [self.tuning.gemm_config(self.rows, run, out, width, packed) for run, out, packed in cases]
        if width % 32 == 0 and all(shape.norms for shape in shapes):
            return xs, norm
        return [self._norm_once(x, norm) for x in xs], None

    def _norm_once(self, x: Value, norm: Rms) -> Value:
        """The same for all that read it."""
        key = x, norm.weight.name
        if key not in self._norms:
            self._norms[key] = self.rms_norm(x, norm.weight, norm.eps)
        return self._norms[key]

    def _mixing(self, asked: Sequence[Asked]) -> Sequence[Asked]:
        """The same, mixing x while they read it where it is held back for that and all of their kernels can."""
        held = {self.held(one.x) for one in asked}
        mixing = held.pop()
        if (
            held
            or not isinstance(mixing, Mixing)
            or not all(self._mixes([asked[i] for i in m]) for m in self._together(asked))
        ):
            return asked
        mixing.mixed([one.x for one in asked])
        return [replace(one, norm=mixing) for one in asked]

    def _mixes(self, asked: Sequence[Asked]) -> bool:
        """Whether products of one dispatch can mix x while they read it."""
        # Of several rows, whose they are is no uniform; and what is added may be asked for later.
        buffers = MIXING_BUFFERS + any(one.bias for one in asked) + 2 * (self.rows > 1)
        shards = [shard for one in asked for shard in self.weights[one.weight.name].shards]
        plain = len(shards) == len(asked) and not any(one.norm for one in asked)
        can, width = self.device.capabilities, asked[0].x.shape[1]
        shape = self._shape(shards, width)
        own, _ = staging(shape, shards, [width], "rows", can.max_workgroup_memory)
        memory = own.workgroup_bytes + MOMENTS * own.tb * (own.wg // own.subgroup_width)
        fits = buffers <= can.max_storage_buffers and memory <= can.max_workgroup_memory
        groups = sum(-(-shard.rows // shape.block) for shard in shards)
        few = self.rows == 1 or min(groups, shape.max_workgroups) <= MIXING_GROUPS
        return plain and fits and few and shape.norms and not shape.reads_quantised

    def _kept(self, x: Value, add: Value) -> dict[str, Operand]:
        """What a product binds that adds a value, and puts it into a state if that is due."""
        for held in self.every_held():
            if isinstance(held, Mixing) and held.x is add and held.over and held is not self.held(x):
                self.take(held)
                return held.keeping
        return {"residual": add}

    def _together(self, asked: Sequence[Asked]) -> list[list[int]]:
        """Which of them one dispatch can compute: those of one format whose weights and inputs each share a buffer."""
        classes: dict[object, list[int]] = {}
        for index, one in enumerate(asked):
            shards = self.weights[one.weight.name].shards
            # A matrix in several shards stays alone.
            key = (shards[0].parts, shards[0].slice.buffer, one.x.root) if len(shards) == 1 else index
            classes.setdefault(key, []).append(index)
        most = range(0, len(asked), MATRICES)
        return [members[at : at + MATRICES] for members in classes.values() for at in most if members[at:]]

    def _multiply_one(self, one: Asked, y: Value, add: Value | None = None, shape: GemmConfig | None = None) -> None:
        """A dispatch for each shard of a matrix."""
        out, width = one.weight.shape
        operands: dict[str, Operand] = {"x": one.x, "y": y}
        start = one.x.offset // 4 if isinstance(one.norm, Mixing) else 0
        if one.bias is not None:
            operands["bias"] = self.vector(one.bias)
        if add is not None:
            operands |= self._kept(one.x, add)
        for shard in self.weights[one.weight.name].shards:
            product = Product(shard, width, start, shard.first, out, shard.first, one.then)
            self._multiply(one.weight.name, [product], operands | {"w": shard.slice}, one.norm, shape=shape)

    def _multiply_rounded(self, one: Asked, y: Value, shape: GemmConfig, integers: Integers) -> None:
        """The same to integers as well."""
        out, width = one.weight.shape
        [shard] = self.weights[one.weight.name].shards
        product = Product(shard, width, 0, 0, out, 0, one.then)
        operands: dict[str, Operand] = {"x": one.x, "y": y, "quantised": integers.value, "w": shard.slice}
        self._multiply(one.weight.name, [product], operands, None, integers, shape)

    def _giving(self, x: Value, weight: Weight) -> GemmConfig | None:
        """A shape by which a product can write integers: a workgroup has whole chunks of its rows."""
        (out, width), shards = weight.shape, self.weights[weight.name].shards
        most = self.device.capabilities.max_workgroup_memory
        shape = self._shape(shards, width, x)
        own, _ = staging(shape, shards, [width], "rows", most)
        if own.kernel != "linear/skinny_gemm" or len(shards) > 1 or out % CHUNK:
            return None
        owned = own.block * owned_blocks(own, self.rows, out)
        fits = own.workgroup_bytes + 4 * owned * own.tb <= most
        return shape if owned % CHUNK == 0 and fits else None

    def _multiply_all(self, asked: Sequence[Asked], ys: Sequence[Value], shape: GemmConfig | None = None) -> None:
        """One dispatch for products that `_together` found, to parts of one stack."""
        if len(asked) == 1:
            self._multiply_one(asked[0], ys[0], shape=shape)
            return
        shards = [self.weights[one.weight.name].shards[0] for one in asked]
        outs = [one.weight.shape[0] for one in asked]
        start = min(shard.slice.offset for shard in shards)
        end = max(shard.slice.offset + shard.slice.nbytes for shard in shards)
        operands: dict[str, Operand] = {
            "x": asked[0].x.root,
            "y": ys[0].root,
            "w": Slice(shards[0].slice.buffer, start, end - start),
        }
        if any(one.bias for one in asked):
            operands["bias"] = Vectors(tuple(one.bias.name if one.bias else None for one in asked), tuple(outs))
        products, bias_at = [], 0
        for one, shard, y in zip(asked, shards, ys, strict=True):
            out, width = one.weight.shape
            moved = shard.moved((shard.slice.offset - start) // 16)
            products.append(Product(moved, width, one.x.offset // 4, y.offset // 4, out, bias_at, one.then))
            bias_at += out
        self._multiply("+".join(one.weight.name for one in asked), products, operands, asked[0].norm, shape=shape)
