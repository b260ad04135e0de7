"""Models that are no GGUF files: converted once, into the cache."""

import hashlib
import os
from pathlib import Path

from rwkv_gpu.convert.checkpoint import is_checkpoint, open_checkpoint
from rwkv_gpu.errors import BadInput

from .bars import quantise_bar
from .echo import echo_text
from .folders import cache_folder
from .screen import Screen


def converted(name: str) -> str:
    """The path of a GGUF file for a model: the path itself, or that of a checkpoint's conversion."""
    source = Path(name)
    if not is_checkpoint(source):
        return name
    target = cache_folder() / "converted" / f"{source.resolve().stem}-{_version(source)}.gguf"
    if not target.exists():
        from rwkv_gpu.convert.convert import convert  # not needed for GGUF files

        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{target.parent}: cannot be written: {error.strerror}; set RWKV_GPU_CACHE") from None
        echo_text(f"rwkv-gpu: converting {name} to {target}, once; smaller: `rwkv-gpu convert --type Q4_K_M`", err=True)
        with quantise_bar(Screen()) as bar:
            convert(source, target, progress=bar.update)
    return str(target)


def _version(source: Path) -> str:
    """Changes when a file of the checkpoint is replaced."""
    files = sorted({source, *(tensor.path for tensor in open_checkpoint(source).tensors.values())})
    stats = [(str(path.resolve()), os.stat(path)) for path in files if path.is_file()]
    facts = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
