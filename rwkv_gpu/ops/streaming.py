"""Streaming of weights from main memory: a step of many rows copies each layer to the GPU before it computes it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..gpu.cost import NO_CONTEXT_COST
from ..gpu.device import Buffer, Capabilities
from ..gpu.plan import Slice
from ..kernels.registry import link
from .dispatch import UnplacedDispatch
from .values import Operand

DIRECT_ROWS = 16  # number of rows up to which kernels read each weight once, directly from main memory
EACH = 8  # vec4s that a lane copies
LANES = 256


def streamed(
    dispatches: Iterable[UnplacedDispatch], slots: Mapping[Buffer, Buffer], can: Capabilities
) -> Iterator[UnplacedDispatch]:
    """Redirects dispatches to copies of weights in slots, and inserts each copy before its first reader.

    A dispatch that reads only part of its weights, such as some experts, still reads main memory.
    """
    copied: dict[Buffer, Buffer] = {}  # the buffer whose copy each slot holds
    for one in dispatches:
        read = [operand for operand in one.operands.values() if isinstance(operand, Slice)]
        wanted = dict.fromkeys(s.buffer for s in read if s.buffer in slots and one.fixed_bytes >= s.nbytes)
        if len({slots[buffer] for buffer in wanted}) < len(wanted):
            yield one
            continue
        for buffer in wanted:
            if copied.get(slots[buffer]) is not buffer:
                copied[slots[buffer]] = buffer
                yield _copy(one, buffer, slots[buffer], can)
        yield replace(one, operands={n: _moved(operand, wanted, slots) for n, operand in one.operands.items()})


def _moved(operand: Operand, wanted: Mapping[Buffer, None], slots: Mapping[Buffer, Buffer]) -> Operand:
    if isinstance(operand, Slice) and operand.buffer in wanted:
        return replace(operand, buffer=slots[operand.buffer])
    return operand


def _copy(before: UnplacedDispatch, source: Buffer, target: Buffer, can: Capabilities) -> UnplacedDispatch:
    lanes = min(LANES, can.max_invocations)
    linked = link("weights/copy", ("lib/lanes/plain",), {"WG": lanes, "EACH": EACH})
    prefix = "" if before.layer is None else f"blk.{before.layer}/"
    return UnplacedDispatch(
        name=f"{prefix}weights copy",
        layer=before.layer,
        op="copy_weights",
        linked=linked,
        bindings=linked.bindings(),
        operands={1: Slice(source, 0, source.nbytes), 2: Slice(target, 0, source.nbytes)},
        groups=-(-source.nbytes // (16 * lanes * EACH)),
        fixed_bytes=2 * source.nbytes,
        row_bytes=0,
        row_flops=0,
        picked=before.picked,
        context_cost=NO_CONTEXT_COST,
        shared_bytes=None,
    )
