"""Stores of states: bytes by key, in memory, in a directory, or in Valkey. They know no model."""

from .directory import DirectoryStore
from .memory import MemoryStore
from .store import Store, StoreDown
from .valkey import ValkeyStore

__all__ = ["DirectoryStore", "MemoryStore", "Store", "StoreDown", "ValkeyStore"]
