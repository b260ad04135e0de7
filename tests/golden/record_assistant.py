"""Records llama.cpp's results for the files of assistant.py: logits of drafted tokens after prompts of several lengths.

    LLAMA=package/bins/linux-x64 python -m tests.golden.record_assistant [NAME ...]     # the library of record_heads.py

As in llama.cpp's driver, all tokens of a draft have the position of the first.
"""

import ctypes as c
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.golden.assistant import ASSISTANTS, HERE, write_assistant
from tests.golden.eagle import write_twin
from tests.golden.record_eagle import Eagle
from tests.golden.record_heads import DRAFTED, MTP

ENDS = 1, 2, 23, 60  # lengths of prompts before a draft; the last is longer than a window


def record(name: str, folder: Path) -> None:
    """Records the logits of the tokens that the assistant drafts after each prompt."""
    with tempfile.TemporaryDirectory() as place:
        model = Eagle(folder, write_twin(Path(place) / "model.gguf", ASSISTANTS[name]))
        head = Eagle(folder, write_assistant(Path(place) / "assistant.gguf", name, plain=True))
    tokens = np.random.default_rng(9).integers(5, 260, ENDS[-1] + 1)
    width = model.lib.llama_model_n_embd(c.c_void_p(model.model))
    target = model.context()
    drafter, at, drafts = head.context(MTP, target), 0, []
    for end in ENDS:
        logits, rows = model.decode(target, tokens[at:end], width, first=at)
        at, token, row = end, int(tokens[end]), rows[-1:]
        for _ in range(DRAFTED):
            found, row = head.decode(drafter, [token], width, row, end)
            token = int(found[0].argmax())
            drafts.append(found[0])
    exact = np.array(drafts, np.float32).reshape(len(ENDS), DRAFTED, -1)
    np.savez_compressed(HERE / f"assistant-{name}.npz", tokens=tokens, exact_logits=logits[-1:], exact_drafts=exact)
    print(f"assistant-{name}.npz: deviation {exact.std():.2f}, drafts {exact.argmax(-1).tolist()}")


if __name__ == "__main__":
    for each in sys.argv[1:] or ASSISTANTS:
        record(each, Path(os.environ["LLAMA"]))
