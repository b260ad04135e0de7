"""A registered kernel: a shader, the parts that fit its holes, and its device requirements."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import ShaderError
from ..gpu.device import Capabilities


@dataclass(frozen=True)
class Needs:
    """Device requirements of a kernel or part, beyond the WebGPU defaults."""

    lanes: int = 1  # minimum number of neighbouring lanes that always share a subgroup
    max_lanes: int = 0  # maximum of the same number; 0: any
    subgroup_size: int = 0  # exact subgroup size; 0: any
    except_size: int = 0  # a subgroup size that another part serves; 0: none
    buffers: int = 0  # minimum number of storage buffers
    fewer_buffers: int = 0  # only for devices with fewer storage buffers than this; 0: any
    f16: bool = False
    subgroup: bool = False  # subgroups of any size
    matrix_units: bool = False
    coherent: bool = False  # workgroups see writes of other workgroups of the dispatch

    def met(self, can: Capabilities) -> bool:
        """True if a device meets all requirements."""
        return (
            can.subgroup_width >= self.lanes
            and (not self.max_lanes or can.subgroup_width <= self.max_lanes)
            and self.subgroup_size in (0, can.subgroup_size)
            and (not self.except_size or self.except_size != can.subgroup_size)
            and can.max_storage_buffers >= self.buffers
            and (not self.fewer_buffers or can.max_storage_buffers < self.fewer_buffers)
            and all(getattr(can, name) or not getattr(self, name) for name in ("f16", "subgroup", "coherent"))
            and (can.fragment > 0 or not self.matrix_units)
        )


@dataclass(frozen=True)
class Tolerance:
    """The allowed error of results, and its reason."""

    terms: float  # relative to the sum of the magnitudes of all terms; used by tests
    result: float  # relative to the largest result; used by `doctor`
    reason: str
    gated: float = 0.0  # relative to the largest gate times up; used by the self test of a driver


EXACT = Tolerance(1e-5, 1e-5, "sums of some hundred products in another order, in float32")
CLOSE = Tolerance(1e-4, 1e-4, "norms over sums, exponentials of sums")
SAME = Tolerance(0.0, 0.0, "moves numbers, or chooses among them")


@dataclass(frozen=True)
class Hole:
    """Functions that a kernel calls but does not define. One of the hole's parts defines them."""

    name: str
    parts: tuple[str, ...]
    optional: bool = False  # whether the hole may stay empty
    callers: tuple[str, ...] = ()  # parts that call it: it is filled if one of them is linked; (): the kernel calls it
    default: str = ""  # the part that fills it if no other is given

    def only(self, *parts: str) -> "Hole":
        """The same hole restricted to some parts, each given in full or by its last component."""
        chosen = tuple(part for part in self.parts if part in parts or part.rpartition("/")[2] in parts)
        assert len(chosen) == len(parts), f"hole {self.name} has not all of {parts}"
        return replace(self, parts=chosen, default=self.default if self.default in chosen else "")

    def but(self, *parts: str) -> "Hole":
        """The same hole without some parts."""
        return self.only(*(part for part in self.parts if part.rpartition("/")[2] not in parts))

    def also(self, *parts: str) -> "Hole":
        """The same hole with further parts."""
        return replace(self, parts=(*self.parts, *parts))

    def maybe(self) -> "Hole":
        """The same hole, which may stay empty."""
        return replace(self, optional=True, callers=(), default="")

    def called_by(self, *callers: str) -> "Hole":
        """The same hole, called only by some parts of a kernel."""
        return replace(self, callers=callers)

    def called(self, parts: Collection[str]) -> bool:
        """True if one of these parts, or the kernel itself, calls it."""
        return not self.callers or any(caller in parts for caller in self.callers)


@dataclass(frozen=True)
class Kernel:
    """The description of a shader, for everything that selects, tunes or tests kernels."""

    name: str  # path of its file: linear/gemv
    op: str  # the op that it serves: linear
    holes: tuple[Hole, ...]
    shared: tuple[str, ...] = ()  # parts that the parts in holes may call; any number of them may be linked
    core: tuple[str, ...] = ()  # parts that are always linked: code common to a family of kernels
    needs: Needs = Needs()
    tolerance: Tolerance = EXACT
    part_needs: Mapping[str, Needs] = field(default_factory=dict)  # requirements of parts specific to this kernel

    def takes(self, part: str) -> bool:
        """True if it has a hole for a part."""
        return any(part in hole.parts for hole in self.holes)

    def accepts(self, parts: Collection[str]) -> bool:
        """True if it has holes for all of these parts."""
        return all(map(self.takes, parts))

    def complete(self, parts: Sequence[str]) -> list[str]:
        """These parts, plus the default part of each hole that they leave open.

        The holes of callers come before the holes that they call.
        """
        found = list(parts)
        for hole in self.holes:
            if hole.default and hole.called(found) and not set(hole.parts) & set(found):
                found.append(hole.default)
        return found

    def check(self, parts: Sequence[str]) -> None:
        """Refuses parts that it has no hole for, and holes that are filled twice or not at all."""
        rest = set(parts) - set(self.shared)
        for hole in self.holes:
            filling, called = rest & set(hole.parts), hole.called(parts)
            if not (called and not hole.optional) <= len(filling) <= called:
                raise ShaderError(f"{self.name}: the hole '{hole.name}' is filled by {sorted(filling) or 'nothing'}")
            rest -= filling
        if rest:
            raise ShaderError(f"{self.name} has no hole for {', '.join(sorted(rest))}")

    def variants(self, can: Capabilities, needs_of: "dict[str, Needs]") -> Iterator[str]:
        """Every part of every hole that a device can run; none if it cannot run the kernel."""
        if self.needs.met(can):
            for hole in self.holes:
                yield from (
                    part for part in hole.parts if self.part_needs.get(part, needs_of.get(part, Needs())).met(can)
                )


KERNELS: dict[str, Kernel] = {}  # by name; `registry.py` fills it
