"""The config.json of a folder of the Hugging Face hub, read strictly: sizes and numbers by name, with defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadFile, printable

MOST, LARGEST = 1 << 24, 1e30  # a size, and a number
# The key of the text model in a model with vision or audio.
PARTS = "text_config", "llm_config"
Default = Any | Callable[["Config"], Any]
# Keys of a rotation that older files store next to the object of the rotation.
OUTSIDE = {
    "rope_theta": ("rope_theta", "rotary_emb_base", "theta"),
    "rope_type": (),
    "partial_rotary_factor": ("partial_rotary_factor", "rope_pct"),
    "original_max_position_embeddings": ("original_max_position_embeddings",),
}
LOCAL = "rope_local_base_freq", "local_rope_theta", "swa_rope_theta"


@dataclass(frozen=True)
class Config:
    """The keys of a text model. A key whose value is null counts as missing."""

    folder: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, raw: Mapping[str, Any], defaults: Mapping[str, Default]) -> "Config":
        """The keys of a file, those of its text model first, and the defaults of the family."""
        inner: Mapping[str, Any] = next((raw[part] for part in PARTS if isinstance(raw.get(part), dict)), {})
        values = {key: value for key, value in {**raw, **inner}.items() if value is not None}
        for key, value in defaults.items():
            if key not in values and (found := value(cls(folder, values)) if callable(value) else value) is not None:
                values[key] = found
        return cls(folder, values)

    @property
    def path(self) -> str:
        """The folder, as messages show it."""
        return printable(str(self.folder))

    def has(self, key: str) -> bool:
        """True if the file or the family gives a value."""
        return key in self.values

    def first(self, keys: Sequence[str]) -> str:
        """The first of these keys that has a value; empty if none has."""
        return next((key for key in keys if self.has(key)), "")

    def size(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number from `low` on."""
        value = self.values.get(key, default)
        if type(value) is not int or not low <= value <= MOST:
            raise self.wrong(key, value, f"a whole number of at least {low}")
        return value

    def total(self, key: str, size: int) -> int:
        """Returns a size computed from `key`, or refuses it as too large. Called before that size is allocated."""
        if size > MOST:
            raise self.wrong(key, self.values.get(key), f"a smaller number: {size:,} rows would be too many")
        return size

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        return self.number_in(self.values, key, default)

    def number_in(self, values: Mapping[str, Any], key: str, default: float | None = None) -> float:
        """A number above 0 in an object of the file."""
        value = values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise self.wrong(key, value, "a number above 0")
        return float(value)

    def size_in(self, values: Mapping[str, Any], key: str) -> int:
        """A whole number above 0 in an object of the file. It may be written with a decimal point."""
        found = self.number_in(values, key)
        if found > MOST or found != int(found):
            raise self.wrong(key, values[key], "a whole number of at least 1")
        return int(found)

    def names(self, key: str, count: int) -> list[str]:
        """A list of names, one for each layer."""
        found = self.values.get(key)
        if not isinstance(found, list) or len(found) != count or not all(isinstance(one, str) for one in found):
            raise self.wrong(key, found, f"a list of {count} names")
        return found

    def wrong(self, key: str, value: Any, expected: str) -> BadFile:
        """The error for a key whose value is not as expected."""
        found = "missing" if value is None else printable(repr(value)[:60])
        return BadFile(f"{self.path}: {key} in config.json is {found}, expected {expected}")

    @property
    def layers(self) -> int:
        """The number of layers; at most 1024, as names are listed for each."""
        found = self.size("num_hidden_layers")
        if found > 1024:
            raise self.wrong("num_hidden_layers", found, "at most 1024")
        return found

    @property
    def head_size(self) -> int:
        """The number of elements of a head."""
        return self.size("head_dim", self.size("hidden_size") // self.size("num_attention_heads"))

    @property
    def rotations(self) -> dict[str, Any]:
        """The rotations of positions: a single one, or one for `full_attention` and one for `sliding_attention`."""
        found = self.values.get("rope_parameters", self.values.get("rope_scaling"))
        if not isinstance(found if found is not None else {}, dict):
            raise self.wrong("rope_parameters", found, "an object")
        rotations = {key: value for key, value in (found or {}).items() if value is not None}
        if "full_attention" in rotations or "sliding_attention" in rotations:
            return rotations
        if "type" in rotations:
            rotations.setdefault("rope_type", rotations["type"])
        for key, names in OUTSIDE.items():
            if key not in rotations and (name := self.first(names)):
                rotations[key] = self.values[name]
        if name := self.first(LOCAL):
            rotations["sliding_attention"] = {"rope_theta": self.values[name]}
        return rotations

    def rotation(self, kind: str = "full_attention") -> dict[str, Any]:
        """The rotation in layers of a kind; a single rotation counts as that of full attention."""
        rotations = self.rotations
        found = rotations.get(kind, rotations if kind == "full_attention" else {})
        if not isinstance(found, dict):
            raise self.wrong(kind, found, "an object")
        return found
