"""A checkpoint: tensors by name, in one file of torch or safetensors, or in a folder of the Hugging Face hub."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadInput, RwkvGpuError, printable
from ..gguf.prefab import is_prefab, stored_in_prefab
from ..gguf.safetensors import is_safetensors, stored_in_safetensors
from ..gguf.stored import Stored
from ..gguf.torch_file import is_torch_file, stored_in_torch_file

ADAPTER = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors", "adapter_model.bin"
SINGLE = "model.safetensors", "pytorch_model.bin"  # a single file of weights; otherwise `INDEX` lists several
INDEX = ".index.json"  # after the name
GGUF = b"GGUF"  # first bytes
MAX_SMALL = 64 << 20  # bytes


@dataclass(frozen=True)
class Checkpoint:
    """The places of all tensors, and the contents of config.json, or of adapter_config.json for an adapter."""

    path: Path
    tensors: dict[str, Stored]
    config: dict[str, Any] = field(default_factory=dict)
    adapter: bool = False
    halved_every: int = 0  # layers after which the outputs of a prefab file are halved; 0 is never


def is_checkpoint(path: Path) -> bool:
    """True if a path can be converted: a file of tensors, or the folder of a model or an adapter."""
    of_file = is_torch_file(path) or is_safetensors(path) or is_prefab(path)
    return of_file or (path / "config.json").is_file() or is_adapter(path)


def is_adapter(path: Path) -> bool:
    """True for the folder of a LoRA adapter that PEFT wrote."""
    return (path / ADAPTER).is_file()


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads the names and places of all tensors."""
    if is_adapter(path):
        return Checkpoint(path, _of_adapter(path), read_json(path / ADAPTER), adapter=True)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"{printable(str(path))}: has no config.json; give the folder of a model or an adapter")
        config = read_json(path / "config.json")
        return Checkpoint(path, _of_folder(path), config)
    if is_torch_file(path):
        return Checkpoint(path, stored_in_torch_file(path))
    if is_safetensors(path):
        return Checkpoint(path, stored_in_safetensors(path))
    if is_prefab(path):
        tensors, every = stored_in_prefab(path)
        return Checkpoint(path, tensors, halved_every=every)
    raise _no_checkpoint(path)


def _no_checkpoint(path: Path) -> RwkvGpuError:
    """The error for a path that cannot be converted."""
    shown = printable(str(path))
    if not path.exists():
        return BadInput(f"{shown}: no such file or folder; `hf download OWNER/NAME --local-dir FOLDER` downloads one")
    if not path.is_file():
        return BadInput(f"{shown}: is not a regular file or folder")
    with path.open("rb") as file:
        start = file.read(len(GGUF))
    if start == GGUF:
        return BadInput(f"{shown}: is a GGUF file already; `rwkv-gpu quantize` writes it with fewer bits per weight")
    if not start:
        return BadFile(f"{shown}: is empty (0 bytes); download it again")
    return BadFile(f"{shown}: is neither a file of torch.save, safetensors or web-rwkv nor a folder with config.json")


def _of_adapter(folder: Path) -> dict[str, Stored]:
    """The tensors of an adapter's file."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise BadInput(f"{printable(str(folder))}: has no {WEIGHTS[0]}; download it next to {ADAPTER}")
    return _of_file(path)


def _of_folder(folder: Path) -> dict[str, Stored]:
    """The tensors of all shards that the index names, or of the only file. Safetensors files are preferred."""
    for name in SINGLE:
        if (folder / (name + INDEX)).is_file():
            return _of_shards(folder, folder / (name + INDEX))
        if (folder / name).is_file():
            return _of_file(folder / name)
    raise BadInput(f"{printable(str(folder))}: has no {' or '.join(SINGLE)}; download it next to config.json")


def _of_shards(folder: Path, index: Path) -> dict[str, Stored]:
    """The tensors of the files that an index names."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise BadFile(f"{printable(str(index))}: has no weight_map of file names; download it again")
    found: dict[str, Stored] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise BadFile(f"{printable(str(index))}: names {printable(name)!r}, which is not a file in the folder")
        if not (folder / name).is_file():
            raise BadInput(f"{printable(str(folder / name))}: is missing; download it next to {index.name}")
        found |= _of_file(folder / name)
    missing = sorted(places.keys() - found.keys())
    if missing:
        raise BadFile(f"{printable(str(folder))}: tensor {printable(missing[0])!r} is in no shard; download them again")
    return found


def _of_file(path: Path) -> dict[str, Stored]:
    return stored_in_torch_file(path) if is_torch_file(path) else stored_in_safetensors(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a folder."""
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise BadFile(f"{printable(str(path))}: is not JSON; download it again") from None
    if not isinstance(found, dict):
        raise BadFile(f"{printable(str(path))}: is not a JSON object; download it again")
    return found


def read_text(path: Path) -> str:
    """The text of a file of a folder."""
    return read_small(path).decode(errors="replace")


def read_small(path: Path) -> bytes:
    """The bytes of a file next to the weights."""
    shown = printable(str(path))
    try:
        if path.stat().st_size > MAX_SMALL:
            raise BadFile(f"{shown}: is too large for a file next to the weights; download it again")
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{shown}: cannot be read: {error.strerror}") from None
