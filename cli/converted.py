"""Converts checkpoints that are not GGUF files, once, into the cache."""

import hashlib
import math
import os
from pathlib import Path

from rwkv_gpu.convert.checkpoint import is_adapter, is_checkpoint, open_checkpoint
from rwkv_gpu.errors import BadInput, FileInUse
from rwkv_gpu.llm.folders import cache_folder
from rwkv_gpu.writer_lock import WriterLock

from .bars import quantise_bar
from .echo import echo_text
from .screen import Screen

OTHERS = "*.json", "*.jinja", "*.model", "*.txt", "README.md", "*/config.json", "*/*.jinja"  # files of a folder


def converted(name: str, *, adapter: bool = False) -> str:
    """The path of a GGUF file for a model or an adapter: the path itself, or that of a checkpoint's conversion."""
    source = Path(name)
    if not is_checkpoint(source):
        return name
    if is_adapter(source) and not adapter:
        raise BadInput(f"{name} is a LoRA adapter; give the model that it was trained on, and --lora {name}")
    name_of, version = source.resolve().name if source.is_dir() else source.resolve().stem, _version(source)
    # An adapter is named after its file.
    place = f"{version}/{name_of}.gguf" if adapter else f"{name_of}-{version}.gguf"
    target = cache_folder() / "converted" / place
    if target.exists():
        return str(target)
    with _turn(target, name) as lock:
        if not target.exists():  # otherwise another process has written it meanwhile
            from rwkv_gpu.convert.convert import convert  # imported late: not needed for GGUF files

            smaller = "" if adapter else "; smaller: `rwkv-gpu convert --type Q4_K_M`"
            echo_text(f"rwkv-gpu: converting {name} to {target}, once{smaller}", err=True)
            with quantise_bar(Screen()) as bar:
                convert(source, target, progress=bar.update, lock=lock)
    return str(target)


def _turn(target: Path, name: str) -> WriterLock:
    """Locks the file of a conversion, after another process that is writing it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return WriterLock(target)
        except FileInUse:
            echo_text(f"rwkv-gpu: another process is converting {name}; waiting for it", err=True)
            return WriterLock(target, math.inf)
    except OSError as error:
        raise BadInput(f"{target.parent}: cannot be written: {error.strerror}; set RWKV_GPU_CACHE") from None


def _version(source: Path) -> str:
    """A value that changes when any file of the checkpoint is replaced."""
    others = [path for pattern in OTHERS for path in source.glob(pattern)] if source.is_dir() else [source]
    files = sorted({*others, *(tensor.path for tensor in open_checkpoint(source).tensors.values())})
    stats = [(str(path.resolve()), os.stat(path)) for path in files if path.is_file()]
    facts = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
