"""Records llama.cpp's results for the files of dflash.py: logits of blocks after prompts of several lengths.

    LLAMA=package/bins/linux-x64 python -m tests.golden.record_dflash [NAME ...]     # the library of record_heads.py

As in llama.cpp's driver, keys and values of the model's rows are injected first. A block is the next token and masks.
"""

import ctypes as c
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.dflash import BLOCK, FLASHES, HERE, MASK, write_dflash
from tests.golden.eagle import write_twin
from tests.golden.record_eagle import Eagle
from tests.golden.record_heads import AT, F32, I32, TOKENS, Rows

ENDS = 1, 2, 8, 23  # lengths of prompts before a block


def injected(head: Eagle, context: Any, rows: np.ndarray, first: int) -> None:
    """Adds keys and values of the model's rows, beginning at a position."""
    given, count = np.ascontiguousarray(rows, np.float32), len(rows)
    batch, zero = Rows(), (I32 * 1)(0)
    batch.count, batch.embd = count, given.ctypes.data_as(c.POINTER(F32))
    positions = [*range(first, first + count)] * 3 + [0] * count  # four dimensions; only M-RoPE reads all
    batch.pos, batch.n_seq = (I32 * len(positions))(*positions), (I32 * count)(*[1] * count)
    batch.seq = (c.POINTER(I32) * count)(*[c.cast(zero, c.POINTER(I32))] * count)
    batch.logits = (c.c_int8 * count)(*[0] * count)
    assert head.lib.llama_decode(context, batch) == 0


def record(name: str, folder: Path) -> None:
    """Records the logits of a block's masks after each prompt. Then the block is removed from the cache."""
    how = FLASHES[name]
    with tempfile.TemporaryDirectory() as place:
        model = Eagle(folder, write_twin(Path(place) / "model.gguf", how.base))
        head = Eagle(folder, write_dflash(Path(place) / "dflash.gguf", name, plain=True))
    tokens = np.random.default_rng(9).integers(5, 260, TOKENS)
    target = model.context()
    logits, rows = model.read(target, tokens, how.read)
    drafter = head.context(0, target)
    head.lib.llama_set_causal_attn.argtypes = [AT, c.c_bool]
    head.lib.llama_set_causal_attn(drafter, how.causal)
    at, blocks = 0, []
    for end in ENDS:
        injected(head, drafter, rows[at:end], at)
        said, _ = head.decode(drafter, [tokens[end], *[MASK] * (BLOCK - 1)], 0, first=end)
        blocks.append(said[1:])
        head.forget(drafter, end)
        at = end
    np.savez_compressed(
        HERE / f"dflash-{name}.npz", tokens=tokens, exact_logits=logits[-1:], exact_blocks=np.array(blocks, np.float32)
    )
    exact = np.array(blocks)
    print(f"dflash-{name}.npz: deviation {exact[np.isfinite(exact)].std():.2f}, drafts {exact[-1].argmax(-1)}")


if __name__ == "__main__":
    for each in sys.argv[1:] or FLASHES:
        record(each, Path(os.environ["LLAMA"]))
