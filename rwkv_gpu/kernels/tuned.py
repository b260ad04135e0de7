"""Results of `tune`: the fastest settings on a device, and their gain. One file per adapter, driver and kernel version.

A user's files are in a folder that the caller names. Those in the package are selected by adapter only.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..gpu.adapters import Adapter
from ..gpu.device import Capabilities
from ..gpu.shader import fingerprint
from ..replace_file import read_own, replace_bytes
from .expert_config import ExpertConfig
from .gemm_config import GemmConfig
from .kernel import KERNELS
from .profiles import TABLES, row_data, rows_of, typed
from .tuning import GROUPS, Tuning

LIMITS = {"chunk_size": 1 << 16, "layers_per_submit": 1 << 16, "look_ahead": 16}  # maximum values of a file


@dataclass(frozen=True)
class Choice:
    """One decision of `tune`, and its reason."""

    what: str
    chosen: str
    default: str
    gain: float  # share of the step time saved compared with the default: 0.1 is a tenth less
    error: float  # statistical error of the gain
    tried: int  # number of candidates with correct results
    wrong: tuple[str, ...] = ()  # candidates whose results differed from the reference


@dataclass(frozen=True)
class Tuned:
    """Constants for kernels, settings for steps, and the reasons for both."""

    adapter: str
    backend: str
    driver: str
    kernels: str  # fingerprint of the shaders it was measured with
    models: tuple[str, ...]
    tuning: Tuning
    chunk_size: int | None = None
    layers_per_submit: int | None = None
    look_ahead: int | None = None
    choices: tuple[Choice, ...] = ()
    library: str = ""  # if matrix units are used: the wgpu-native with which they were correct and faster

    def text(self) -> str:
        """The content of the file."""
        values: dict[str, Any] = {name: asdict(getattr(self.tuning, name)) for name in GROUPS}
        tables = {name: [{"rows": [row_data(*row) for row in self.tuning.value(name)]}] for name in TABLES}
        about = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tuning"}
        about["choices"] = [asdict(choice) for choice in self.choices]
        data = {**about, "tuning": {**values, **tables}}
        return json.dumps({"checksum": checksum(data), **data}, indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> Tuned:
    """The inverse of `text`. Raises ValueError for any other text, such as a file of an earlier version."""
    try:
        data = json.loads(text)
        if data.pop("checksum") != checksum(data):
            raise ValueError("not a file of tuning results: its checksum is wrong")
        given = data.pop("tuning")
        values: dict[str, Any] = {name: typed(group, given[name]) for name, group in GROUPS.items()}
        for name in TABLES:
            values[name] = tuple(row for block in given[name] for row in rows_of(block, name))
        choices = tuple(typed(Choice, {**choice, "wrong": tuple(choice["wrong"])}) for choice in data.pop("choices"))
        if not all(values[name] for name in TABLES):
            raise ValueError("a table without rows")
        if any((data[name] or 0) > most for name, most in LIMITS.items()):
            raise ValueError("not a file of tuning results: a step has other limits")
        return typed(Tuned, {**data, "models": tuple(data["models"]), "tuning": Tuning(**values), "choices": choices})
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a file of tuning results: {error!r}") from error


def checksum(data: Any) -> str:
    """The checksum of a file's content. Without it, a damaged value of the right type would be used."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def file_name(adapter: Adapter) -> str:
    """The name of a user's tuning file: llvmpipe-3f2a91c4.json"""
    key = "\n".join((adapter.name, adapter.backend, adapter.driver, fingerprint()))
    return f"{slug(adapter.name)}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def slug(name: str) -> str:
    """The name of a GPU in a form for file names: nvidia-h200"""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().split("(")[0]).strip("-") or "gpu"


def find(adapter: Adapter, can: Capabilities, folder: Path | None) -> Tuned | None:
    """The user's tuning of this device, else one in the package; None if there is none that the device can run.

    A damaged file, or one of another version, is ignored; tuning again replaces it.
    """
    own = folder / file_name(adapter) if folder else None
    shipped = resources.files("rwkv_gpu.profiles").joinpath(f"{slug(adapter.name)}.json")
    for place in (own, shipped):
        if place is None or not place.is_file():
            continue
        try:
            tuned = parse(read_own(place) if isinstance(place, Path) else place.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            continue
        if runs(tuned.tuning, can):
            return tuned
    return None


def own_tuning(adapter: Adapter, folder: Path | None) -> Tuned | None:
    """The user's tuning of this adapter; None if there is none of this version."""
    if folder is None:
        return None
    try:
        return parse(read_own(folder / file_name(adapter)))
    except (ValueError, OSError):
        return None


def save(tuned: Tuned, adapter: Adapter, folder: Path) -> Path:
    """Writes a user's tuning file atomically."""
    path = folder / file_name(adapter)
    replace_bytes(path, tuned.text().encode())
    return path


def runs(tuning: Tuning, can: Capabilities) -> bool:
    """True if a device can run all configurations of a tuning."""
    lanes, attention = tuning.lanes, tuning.attention
    counts = lanes.row_lanes, lanes.map_lanes, attention.workgroup_lanes, attention.decode_lanes
    reduces = {"one_subgroup": lanes.row_lanes == can.subgroup_size, "subgroup": can.subgroup}.get(lanes.reduce, True)
    fits = all(1 <= count <= can.max_invocations for count in counts)
    on_units = attention.prompts_on_matrix_units or tuning.recurrence.state_space_on_matrix_units
    configs = (config.kernel in KERNELS and config.runs_on(can) for config in tuning.configs)
    return reduces and fits and (can.fragment > 0 or not on_units) and all(configs)


def shown(value: Any) -> str:
    """A short text for a value: a number, or a configuration's kernel and its non-default fields."""
    if not isinstance(value, GemmConfig | ExpertConfig):
        return str(value)
    given = ((field, getattr(value, field.name)) for field in fields(value) if field.name != "kernel")
    words = (f"{field.name}={found}" for field, found in given if found != field.default)
    return " ".join((value.kernel.rpartition("/")[2], *words))
