"""A model opened for a command, with a bar while it loads."""

from typing import Any

import rwkv_gpu

from .bars import loading_bar
from .folders import tuned_folder
from .screen import Screen

WARM = 32  # tokens of a prompt whose kernels serve longer ones, too


def load_model(model: str, screen: Screen, *, warm: bool = False, **opening: Any) -> "rwkv_gpu.LLM":
    """The model, loaded as the options say; `warm` has a GPU compile its kernels now, not at the first question."""
    with loading_bar(screen) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(done, total, "compiling shaders" if done >= total else "uploading")

        llm = rwkv_gpu.load(model, progress=progress, tuned=tuned_folder(), **opening)
        if warm and llm.info.device != "cpu":
            llm.generate([0] * min(WARM, (llm.context or WARM) // 2), max_tokens=2)
        return llm
