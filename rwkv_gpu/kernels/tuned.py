"""What was found to be fastest on a device, and by how much: a file for each adapter, driver and state of the kernels.

A user's own files lie in a folder that the caller names; those that come with the package go by the adapter alone.
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
from ..replace_file import replace_text
from .expert_config import ExpertConfig
from .gemm_config import GemmConfig
from .registry import KERNELS
from .tuning import Size, Tuning

LADDERS = {
    "linear": GemmConfig,
    "linear_short": GemmConfig,
    "linear_packed": GemmConfig,
    "experts": ExpertConfig,
    "experts_short": ExpertConfig,
    "heads": ExpertConfig,
}


@dataclass(frozen=True)
class Choice:
    """One thing that was decided, and why."""

    what: str
    chosen: str
    default: str
    gain: float  # of the time of a step, beside the default: 0.1 is a tenth less
    error: float  # what chance may have done to that
    tried: int  # candidates that were right
    wrong: tuple[str, ...] = ()  # candidates that gave another answer than the reference


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
    library: str = ""  # the wgpu-native with which matrix units were found right and faster, where they are used

    def text(self) -> str:
        """As a file holds it."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> Tuned:
    """The reverse; raises ValueError, KeyError or TypeError where the text is something else."""
    data = json.loads(text)
    known = {field.name for field in fields(Tuning)}
    tuning = {name: value for name, value in data["tuning"].items() if name in known}
    for name, shape in LADDERS.items():
        tuning[name] = tuple((bound, shape(**given)) for bound, given in tuning.get(name, ()))
    sized = tuning.get("linear_sized", ())
    tuning["linear_sized"] = tuple((Size(**size), GemmConfig(**given)) for size, given in sized)
    choices = tuple(Choice(**{**choice, "wrong": tuple(choice["wrong"])}) for choice in data["choices"])
    return Tuned(**{**data, "tuning": Tuning(**tuning), "choices": choices, "models": tuple(data["models"])})


def file_name(adapter: Adapter) -> str:
    """Of a user's own file: llvmpipe-3f2a91c4.json"""
    key = "\n".join((adapter.name, adapter.backend, adapter.driver, fingerprint()))
    return f"{slug(adapter.name)}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def slug(name: str) -> str:
    """The name of a GPU as one of a file: nvidia-h200"""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().split("(")[0]).strip("-") or "gpu"


def find(adapter: Adapter, can: Capabilities, folder: Path | None) -> Tuned | None:
    """What the user has found on this device, else what comes with the package, where the device can run it.

    A file that is damaged, or of another version, is as good as none: tuning again replaces it.
    """
    own = folder / file_name(adapter) if folder else None
    shipped = resources.files("rwkv_gpu.profiles").joinpath(f"{slug(adapter.name)}.json")
    for place in (own, shipped):
        if place is None or not place.is_file():
            continue
        try:
            tuned = parse(place.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, OSError):
            continue
        if runs(tuned.tuning, can):
            return tuned
    return None


def matrix_units_library(adapter: Adapter, folder: Path | None) -> str:
    """The wgpu-native with which the user has tuned this adapter and matrix units came out faster; else nothing."""
    if folder is None:
        return ""
    try:
        return parse((folder / file_name(adapter)).read_text(encoding="utf-8")).library
    except (ValueError, KeyError, TypeError, OSError):
        return ""


def save(tuned: Tuned, adapter: Adapter, folder: Path) -> Path:
    """Writes a user's own file whole, or leaves what there was."""
    path = folder / file_name(adapter)
    replace_text(path, tuned.text())
    return path


def runs(tuning: Tuning, can: Capabilities) -> bool:
    """Whether a device has all that these constants ask for."""
    configs = [config for name in (*LADDERS, "linear_sized") for _, config in getattr(tuning, name)]
    lanes = [tuning.row_lanes, tuning.map_lanes, tuning.attention_lanes, tuning.decode_lanes]
    reduces = {"one_subgroup": tuning.row_lanes == can.subgroup_size, "subgroup": can.subgroup}.get(tuning.reduce, True)
    fits = all(1 <= count <= can.max_invocations for count in lanes)
    units = can.fragment > 0 or not (tuning.attention_on_matrix_units or tuning.state_space_on_matrix_units)
    return reduces and fits and units and all(config.kernel in KERNELS and config.runs_on(can) for config in configs)


def shown(value: Any) -> str:
    """A number, or a configuration in few words: its kernel, and what is not as by default."""
    if not isinstance(value, GemmConfig | ExpertConfig):
        return str(value)
    given = ((field, getattr(value, field.name)) for field in fields(value) if field.name != "kernel")
    words = (f"{field.name}={found}" for field, found in given if found != field.default)
    return " ".join((value.kernel.rpartition("/")[2], *words))
