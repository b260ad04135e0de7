"""Warnings at load about parts of a file that change answers and that llama.cpp ignores."""

import warnings
from collections.abc import Callable

from ..gguf.file import GGUFFile


class AnswersDiffer(UserWarning):
    """The answers of this file differ from llama.cpp's, which ignores a part of it, or from its publisher's."""


# The architectures for which llama.cpp reads these keys. In files of other architectures, users have added them.
READS_BETAS = ("grok", "mistral3", "mistral4")
READS_WINDOWS = {
    *("afmoe", "cohere2", "cohere2moe", "exaone-moe", "exaone4", "gemma-embedding", "gemma2", "gemma3", "gemma3n"),
    *("gemma4", "gpt-oss", "granite_swa", "laguna", "lfm2", "lfm2moe", "llama4", "maple", "mellum", "mimo2"),
    *("deepseek4", "dots3note", "modern-bert", "muse-glimmer", "olmo2", "plamo3", "smallthinker", "spark2_5", "step35"),
}
FLAGS = {  # keys that llama.cpp ignores, by architecture, and what they mean if they are true
    "chameleon": (
        "swin_norm",
        "a feed-forward reads the sum after attention, as in the publisher's code. llama.cpp ignores what came before, "
        "and answers differently",
    ),
    "hrm_text": (
        "hrm.prefix_lm",
        "a token of the prompt sees all of it, as in the publisher's training. llama.cpp ignores the key, and answers "
        "differently; --override-kv hrm_text.hrm.prefix_lm=bool:false answers as it does",
    ),
}
BETAS = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}  # defaults of YaRN in llama.cpp


def warn_of_differences(file: GGUFFile) -> None:
    """Warns once for each key or tensor of this file that llama.cpp ignores and that changes answers."""
    for find in FINDERS:
        said = find(file, file.str("general.architecture"))
        if said:
            warnings.warn(f"{file.path}: {said}", AnswersDiffer, stacklevel=4)


def _window(file: GGUFFile, arch: str) -> str | None:
    key = f"{arch}.attention.sliding_window"
    window = file.metadata.get(key)
    context = file.metadata.get(f"{arch}.context_length")
    if arch in READS_WINDOWS or not isinstance(window, int) or not isinstance(context, int) or not 0 < window < context:
        return None
    return (
        f"{key} is {window}, so a token sees that many. llama.cpp ignores the key, and answers longer texts "
        f"differently; --override-kv {key}=int:0 answers as it does"
    )


def _betas(file: GGUFFile, arch: str) -> str | None:
    at = f"{arch}.rope.scaling"
    if arch in READS_BETAS or file.metadata.get(f"{at}.type") != "yarn":
        return None
    for name, usual in BETAS.items():
        if file.metadata.get(f"{at}.{name}", usual) != usual:
            return (
                f"{at}.{name} is {file.metadata[f'{at}.{name}']}. llama.cpp ignores the key, and answers differently; "
                f"--override-kv {at}.{name}=float:{usual:g} answers as it does"
            )
    return None


def _bias(file: GGUFFile, arch: str) -> str | None:
    if arch != "falcon-h1" or "blk.0.attn_output.bias" not in file.tensors:
        return None
    return "blk.0.attn_output.bias is added, as by the publisher. llama.cpp ignores it, and answers differently"


def _grok(file: GGUFFile, arch: str) -> str | None:
    names = (f"grok.{name}" for name in ("router_logit_softcapping", "attention.temperature_length"))
    key = next((name for name in names if arch == "grok" and file.metadata.get(name)), None)
    return None if key is None else f"{key} is followed. llama.cpp ignores the key, and answers differently"


def _groves(_: GGUFFile, arch: str) -> str | None:
    if arch != "grovemoe":
        return None
    return "its smaller experts are computed as the publisher does. llama.cpp has another formula"


def _flag(file: GGUFFile, arch: str) -> str | None:
    name, meaning = FLAGS.get(arch, ("", ""))
    key = f"{arch}.{name}"
    return f"{key} is true, so {meaning}" if file.metadata.get(key) is True else None


def _tied(file: GGUFFile, arch: str) -> str | None:
    if arch != "t5" or "output.weight" in file.tensors:
        return None
    return "its embedding is its head, so logits are divided by sqrt(width), as by the publisher. llama.cpp does not"


FINDERS: tuple[Callable[[GGUFFile, str], str | None], ...] = (_window, _betas, _bias, _grok, _groves, _flag, _tied)
