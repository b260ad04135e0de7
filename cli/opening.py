"""A model opened for a command, with a bar while it loads."""

from typing import Any

import rwkv_gpu

from .bars import loading_bar
from .folders import tuned_folder
from .screen import Screen


def open_model(model: str, screen: Screen, **opening: Any) -> "rwkv_gpu.LLM":
    """The model, loaded as the options say."""
    with loading_bar(screen) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(done, total, "compiling shaders" if done >= total else "uploading")

        return rwkv_gpu.load(model, progress=progress, tuned=tuned_folder(), **opening)
