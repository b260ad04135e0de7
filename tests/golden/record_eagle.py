"""Records llama.cpp's results for the files of eagle.py: logits of the head at every position, and drafted tokens.

    LLAMA=package/bins/linux-x64 python -m tests.golden.record_eagle [NAME ...]     # the library of record_heads.py

As in llama.cpp's driver, token p + 1 and the row of token p are at position p, so the first token is not read.
"""

import ctypes as c
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.eagle import EAGLES, HERE, write_eagle, write_twin
from tests.golden.record_heads import AT, DRAFTED, F32, FLAG, I32, TOKENS, Llama, Rows


class Eagle(Llama):
    """The library of llama.cpp with a model, and functions for rows of its layers."""

    def __init__(self, folder: Path, path: Path) -> None:
        super().__init__(folder, path)
        self.rows_of_layer = self.lib["_Z30llama_get_embeddings_layer_inpP13llama_contextj"]
        self.rows_of_layer.restype, self.rows_of_layer.argtypes = c.POINTER(F32), [AT, I32]
        self.set_layer = self.lib["_Z30llama_set_embeddings_layer_inpP13llama_contextjb"]
        self.set_layer.argtypes = [AT, I32, FLAG]
        self.all_rows = self.lib["_Z26llama_get_embeddings_nextnP13llama_context"]
        self.all_rows.restype, self.all_rows.argtypes = c.POINTER(F32), [AT]
        self.layers = self.lib.llama_model_n_layer(c.c_void_p(self.model))
        self.lib.llama_encode.argtypes = [AT, Rows]

    def layer(self, context: Any, layer: int, shape: tuple[int, int]) -> np.ndarray:
        """Returns the rows before a layer in the last step, or after the last layer."""
        found = self.all_rows(context) if layer == self.layers else self.rows_of_layer(context, layer)
        return np.ctypeslib.as_array(found, shape).copy()

    def read(self, context: Any, tokens: np.ndarray, layers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Decodes tokens, and returns their logits and the rows of these layers, one after the other."""
        for layer in set(layers) - {self.layers}:
            self.set_layer(context, layer, True)
        width = self.lib.llama_model_n_embd(c.c_void_p(self.model))
        logits, _ = self.decode(context, tokens, width)
        return logits, np.concatenate([self.layer(context, one, (len(tokens), width)) for one in layers], axis=1)

    def encode(self, context: Any, rows: np.ndarray, width: int) -> np.ndarray:
        """Returns the rows that the head computes from rows of three layers."""
        given, batch = np.ascontiguousarray(rows, np.float32), Rows()
        batch.count, batch.embd = len(rows), given.ctypes.data_as(c.POINTER(F32))
        assert self.lib.llama_encode(context, batch) == 0
        return np.ctypeslib.as_array(self.all_rows(context), (len(rows), width)).copy()


def record(name: str, folder: Path) -> None:
    """Records a head's logits after each token except the first, and the tokens that it drafts after the last."""
    how = EAGLES[name]
    with tempfile.TemporaryDirectory() as place:
        model = Eagle(folder, write_twin(Path(place) / "model.gguf", how.base))
        head = Eagle(folder, write_eagle(Path(place) / "eagle.gguf", name, plain=True))
    tokens = np.random.default_rng(9).integers(3, 260, TOKENS)
    target = model.context()
    logits, read = model.read(target, tokens, how.layers)
    drafter = head.context(0, target)
    rows = head.encode(drafter, read, how.width)
    said, _ = head.decode(drafter, tokens[1:], how.width, rows[:-1])
    token, row, drafted, drafts = int(logits[-1].argmax()), rows[-1:], [], []
    for step in range(DRAFTED):
        found, row = head.decode(drafter, [token], how.width, row, TOKENS - 1 + step)
        token = int(found[0].argmax())
        drafted.append(token)
        drafts.append(found[0])
    np.savez_compressed(
        HERE / f"eagle-{name}.npz", tokens=tokens, exact_logits=logits[-1:], drafted=np.array(drafted),
        exact_head=said.astype(np.float32), exact_drafts=np.array(drafts, np.float32),
    )  # fmt: skip
    print(f"eagle-{name}.npz: deviation {said[np.isfinite(said)].std():.2f}, drafts {drafted}")


if __name__ == "__main__":
    for each in sys.argv[1:] or EAGLES:
        record(each, Path(os.environ["LLAMA"]))
