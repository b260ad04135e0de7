"""Asks before a file is replaced."""

from pathlib import Path

from rwkv_gpu.measure.sizes import sized

from .folders import agreed


def may_replace(target: Path) -> bool:
    """True if there is no such file, or if the user agrees to replace it: by --yes, or when asked."""
    return not target.is_file() or agreed(
        f"{target} exists, {sized(target.stat().st_size)}. Replace it?",
        f"{target} exists; -y replaces it, or give another name",
        default=False,
    )
