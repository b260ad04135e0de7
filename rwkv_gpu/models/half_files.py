"""GGUF files that accompany a model, such as projectors and adapters: their kinds, and their use."""

from collections.abc import Callable

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile

ADAPTERS = {
    "lora": "a LoRA adapter; open its model, and give this file with --lora",
    "state": "a tuned state; open its model, and give this file with --initial-state",
}
USE_DRAFT = "open the model that it drafts for, and give this file with --draft"
DRAFT_HEADS = {
    "dflash": f"a DFlash draft head; {USE_DRAFT}",
    "eagle3": f"an EAGLE-3 draft head; {USE_DRAFT}",
    "gemma4-assistant": f"a draft head of Gemma 4 (assistant); {USE_DRAFT}",
}
MTP = "only the blocks that predict further tokens (MTP) of a model; open the model, and give this file with --draft"


def half_of(file: GGUFFile) -> str | None:
    """Names the kind of a file that is not a whole model, and its use; None for a model."""
    kind, arch = file.str("general.type", default="model"), file.str("general.architecture", default="")
    if kind == "adapter":
        made = file.str("adapter.type", default="")
        return ADAPTERS.get(made, "an adapter of a kind that is not supported; open its model without it")
    if kind == "imatrix":
        return "an importance matrix; give it to `rwkv-gpu quantize` with --imatrix"
    if arch == "controlvector":
        return "a control vector, which is not supported; train a LoRA adapter, and give it with --lora"
    if kind == "mmproj" or arch == "clip":
        return f"a projector of {_senses(file)} (mmproj); open its language model, and give this file with --mmproj"
    if arch in DRAFT_HEADS:
        return DRAFT_HEADS[arch]
    return _part_of_tensors(file)


def drafts_by_head(file: GGUFFile) -> bool:
    """True for a file of heads that draft for a model in another file."""
    return file.str("general.architecture", default="") in DRAFT_HEADS or half_of(file) == MTP


def refuse_half(file: GGUFFile) -> None:
    """Refuses a file that is not a complete model."""
    half = half_of(file)
    if half is not None:
        raise UnsupportedModel(f"{file.path}: is not a complete model: it is {half}")


def _senses(file: GGUFFile) -> str:
    """The media that a projector accepts."""
    vision, audio = (file.metadata.get(f"clip.has_{name}_encoder") is True for name in ("vision", "audio"))
    return "images and sounds" if vision and audio else "sounds" if audio else "images"


def _part_of_tensors(file: GGUFFile) -> str | None:
    """Describes a file that has only a part of its model's tensors; None for other files."""

    def has(test: Callable[[str], bool]) -> bool:
        return any(test(name) for name in file.tensors)

    if has(lambda name: ".nextn." in name) and not has(lambda name: name.startswith("blk.0.")):
        return MTP
    if not file.tensors and "tokenizer.ggml.tokens" in file.metadata:
        return "only a vocabulary; open the file of the whole model"
    if file.tensors and not has(lambda name: not name.endswith((".lora_a", ".lora_b"))):
        return ADAPTERS["lora"]
    if has(lambda name: name.startswith(("v.blk.", "a.blk."))) and not has(lambda name: name.startswith("blk.")):
        return "a projector of images or sounds (mmproj); open its language model, and give this file with --mmproj"
    return None
