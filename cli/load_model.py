"""Loads a model for a command, with a bar that shows the stages."""

from typing import Any

import rwkv_gpu

from .bars import loading_bar
from .folders import cache_folder, tuned_folder
from .screen import Screen

WARM = 32  # tokens of a prompt whose kernels serve longer ones, too


def load_model(model: str, screen: Screen, *, warm: bool = False, **loading: Any) -> "rwkv_gpu.LLM":
    """The model, loaded with the given options. With `warm` a GPU compiles its shaders now, not at the first question.

    So the first answer comes without delay, and the speeds shown with it do not count compiling.
    """
    with loading_bar(screen) as bar:

        def progress(done: int, total: int) -> None:
            if done < total:
                bar.update(done, total, "uploading weights")
            else:
                bar.update(0, 0, "compiling shaders")

        llm = load_quietly(model, progress=progress, **loading)
        if warm and llm.info.device != "cpu":
            bar.update(0, 0, "compiling shaders")
            llm.generate([0] * min(WARM, (llm.context or WARM) // 2), max_tokens=2)
        return llm


def load_quietly(model: str, **loading: Any) -> "rwkv_gpu.LLM":
    """The model, with what this machine's folders know of it and its GPU."""
    return rwkv_gpu.load(model, tuned=tuned_folder(), digests=cache_folder() / "digests", **loading)
