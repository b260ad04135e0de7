"""Ways to run one model that are compared with each other: the format of keys and values, a LoRA adapter."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.ops.kv_format import KVType

from .adapters import KINDS, random_adapter, save

NONE = "none"


@dataclass(frozen=True)
class Variant:
    """One way; we and every peer run it."""

    kv: KVType
    lora: str  # none, attention, all, or a file

    @property
    def name(self) -> str:
        """What is turned on."""
        on = [f"kv {self.kv}"] * (self.kv != "f16") + [f"lora {Path(self.lora).stem}"] * (self.lora != NONE)
        return ", ".join(on)

    @property
    def suffix(self) -> str:
        """Of the names of sides."""
        return f", {self.name}" if self.name else ""

    def adapter(self, model: str, rank: int, folder: Path) -> str | None:
        """The adapter's file; factors of a kind are random, and written to the folder."""
        if self.lora not in KINDS:
            return None if self.lora == NONE else self.lora
        path = folder / f"{self.lora}.gguf"
        if not path.exists():
            with GGUFFile.open(model) as file:
                save(str(path), random_adapter(0, file, self.lora, rank), file.str("general.architecture"))
        return str(path)


def variants(kv: Sequence[KVType], lora: Sequence[str]) -> list[Variant]:
    """Every format with every adapter, in the order given."""
    return [Variant(*each) for each in itertools.product(kv, lora)]
