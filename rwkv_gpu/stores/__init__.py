"""Stores of states: bytes by key, in memory, in a directory, at a URL, in Valkey or in Ray. Independent of models."""

import os
from pathlib import Path

from .directory import DirectoryStore
from .filesystem import FilesystemStore
from .ray_objects import NAME, RayStore
from .store import MemoryStore, Store, StoreDown
from .valkey import ValkeyStore

__all__ = [
    "DirectoryStore", "FilesystemStore", "MemoryStore", "RayStore", "Store", "StoreDown", "ValkeyStore", "open_store",
]  # fmt: skip

VALKEY = ("valkey://", "valkeys://", "redis://", "rediss://")
RAY = "ray-objects://"


def open_store(name: str | os.PathLike[str]) -> Store:
    """Opens the store at a path or URL. URLs other than Valkey's and Ray's use fsspec."""
    if not isinstance(name, str) or "://" not in name:
        return DirectoryStore(Path(name))
    if name.startswith(VALKEY):
        return ValkeyStore(name)
    if name.startswith(RAY):
        return RayStore(name.removeprefix(RAY) or NAME)
    return FilesystemStore(name)
