"""The sizes of a model's plans: few, because recording a plan makes all requests wait."""

import math
from collections.abc import Iterator

from ..ops.batch import Batch


def bucket(count: int, most: int) -> int:
    """The next power of two from `count`, at most `most`."""
    return min(most, 1 << max(0, count - 1).bit_length())


def outputs_for(rows: int, outputs: int, sequences: int) -> int:
    """Output rows of a plan. In steps with prompts they are 1, 8, 64 ..., so that few plans have to be recorded."""
    if outputs == rows:
        return outputs
    coarse = 1 << 3 * math.ceil((outputs - 1).bit_length() / 3)
    return max(outputs, min(coarse, bucket(sequences, rows)))


def common_steps(sequences: int, rows: int) -> Iterator[Batch]:
    """Typical steps of each size: a prompt, answers, and prompts together with answers."""
    sizes = [1 << n for n in range(max(0, rows - 1).bit_length())] + [rows]
    for size in sizes[:0:-1]:
        yield Batch.of([(0, 0, [0] * size)])
    for size in sizes:
        yield Batch.of([(slot, 1, [0]) for slot in range(min(size, sequences))])
    for several in (2, 9, 65):  # see `outputs_for`
        for size in sizes[::-1]:
            if several < size and several <= sequences:
                yield Batch.of([(slot, 0, [0] * (1 if slot else size - several + 1)) for slot in range(several)])
