"""Longer contexts than a model was trained on: how its positions are scaled, by the options of llama.cpp.

The scaling is metadata of the file, so options become values that replace keys.
"""

import warnings
from dataclasses import dataclass

from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..gguf.override import Override
from ..ops.vocabulary import Rope, found
from .registry import Model
from .rope import SCALE, SCALINGS
from .tensors import LONGEST_CONTEXT

KINDS = SCALINGS[:3]  # longrope needs tensors of the file


class ContextExtended(UserWarning):
    """The context is longer than the model was trained on."""


@dataclass(frozen=True)
class RopeScaling:
    """Options: the kind of scaling, its factor, and the original context. None takes the file's value."""

    kind: str | None = None
    scale: float | None = None
    original: int | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise BadInput(f"rope_scaling is {self.kind!r}; it must be {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        if self.scale is not None and not SCALE[0] <= self.scale <= SCALE[1]:
            raise BadInput(f"rope_scale is {self.scale}; it must be a number from {SCALE[0]:g} to {SCALE[1]:g}")
        if self.original is not None and not 1 <= self.original <= LONGEST_CONTEXT:
            raise BadInput(f"yarn_orig_ctx is {self.original}; it must be from 1 to {LONGEST_CONTEXT:,}")


def lengthen(file: GGUFFile, model: Model, asked: RopeScaling, context: int | None) -> bool:
    """Replaces the RoPE scaling in the metadata by options, or as a longer context needs. False if nothing changes.

    As in llama.cpp, the kind and the scale are those of the file unless given. If nothing is given, a longer context
    uses YaRN. A model without RoPE is refused.
    """
    arch, trained = file.str("general.architecture"), model.context or 0
    longer = context is not None and 0 < trained < context
    if asked == RopeScaling() and not longer:
        return False
    at = f"{arch}.rope.scaling"
    if not any(found(model, Rope)):
        limit = f" of at most {trained:,} tokens" if trained else ""
        raise BadInput(
            f"positions of this model ({arch}{limit}) do not rotate and cannot be scaled; leave out the options of "
            "rope scaling, and a longer context"
        )
    kind = asked.kind or _kind(file, at, asked.scale)
    key = f"{at}.original_context_length"
    original = asked.original or file.int(key, low=1, high=LONGEST_CONTEXT, default=trained) or trained
    needed = max(1.0, context / original) if longer and context is not None else _factor(file, at)
    scale = 1.0 if kind == "none" else asked.scale or needed
    longest = max(trained, context or 0, int(original * scale))
    values: dict[str, Override] = {
        f"{at}.type": kind, f"{at}.factor": float(scale), key: original,
        f"{arch}.context_length": min(LONGEST_CONTEXT, longest),
    }  # fmt: skip
    file.override(values)
    if longer:
        warnings.warn(_note(context or 0, trained, kind, scale), ContextExtended, stacklevel=4)
    return True


def _kind(file: GGUFFile, at: str, scale: float | None) -> str:
    """The scaling kind of the file, if it has one; linear if only a scale is given."""
    kind = file.metadata.get(f"{at}.type", "linear")
    if kind in KINDS and (scale is not None or _factor(file, at) != 1):
        return str(kind)
    return "yarn" if scale is None else "linear"


def _factor(file: GGUFFile, at: str) -> float:
    """The scaling factor of the file; 1 if it has none."""
    value = file.float(f"{at}.factor", default=1.0)
    return value if value > 0 else 1.0


def _note(context: int, trained: int, kind: str, scale: float) -> str:
    if kind == "none":
        return (
            f"the context of {context:,} tokens is longer than the {trained:,} that the model was trained on, and "
            "positions are not scaled: answers may become meaningless beyond that"
        )
    name = {"yarn": "YaRN", "linear": "linear scaling"}[kind]
    return (
        f"the context of {context:,} tokens is longer than the {trained:,} that the model was trained on: "
        f"{name} scales positions by {scale:.4g}, also in short texts; --rope-scaling changes this"
    )
