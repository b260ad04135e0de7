"""Stores of states: bytes by key, in memory, in a directory, at a URL, in Valkey or in Ray. They know no model."""

from .directory import DirectoryStore
from .filesystem import FilesystemStore
from .memory import MemoryStore
from .open_store import open_store
from .ray_objects import RayStore
from .store import Store, StoreDown
from .valkey import ValkeyStore

__all__ = [
    "DirectoryStore", "FilesystemStore", "MemoryStore", "RayStore", "Store", "StoreDown", "ValkeyStore", "open_store",
]  # fmt: skip
