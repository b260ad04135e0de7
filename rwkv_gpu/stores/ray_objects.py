"""A store in Ray's object store: shared by all processes of a cluster; Ray transfers the bytes."""

import threading
from collections.abc import Sequence
from typing import Any

from ..errors import BadInput, MissingExtra
from .store import DEFAULT_AGE, DEFAULT_BYTES, Bounded, StoreDown

NAMESPACE = "rwkv-gpu"
NAME = "states"
PATIENCE = 5.0  # seconds for each response


class Owner:
    """The actor that owns all values, so that they outlive the process that wrote them."""

    def __init__(self, max_bytes: int, max_age: float) -> None:
        self._refs: Bounded[Any] = Bounded(max_bytes, max_age)

    def get(self, keys: Sequence[str]) -> list[Any]:
        """References to the values; None for missing ones."""
        return [self._refs.get(key) for key in keys]

    def put(self, key: str, value: bytes) -> None:
        """Stores a value on the node of this actor, so that draining another node loses nothing."""
        import ray

        self._refs.put(key, ray.put(value), len(value))


class RayStore:
    """A store in a named actor. The first process creates it with its limits; it lives until the cluster ends.

    Uses the cluster that this process has joined by `ray.init`.
    """

    def __init__(
        self, name: str = NAME, max_bytes: int = DEFAULT_BYTES, max_age: float = DEFAULT_AGE,
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        try:
            import ray
        except ModuleNotFoundError:
            raise MissingExtra.of("a store in Ray needs ray", "ray") from None
        if not ray.is_initialized():  # Ray would start a new cluster
            raise BadInput(
                "a store in Ray is for processes of a Ray cluster; call ray.init before, or use rwkv_gpu.ray"
            )
        self._ray: Any = ray
        self._name = name
        self._bounds = max_bytes, max_age
        self._patience = patience
        self._lock = threading.Lock()
        self._owner: Any = None

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None for values that are missing, or lost with their node."""
        refs = self._ask("get", [*keys])
        return [None if ref is None else self._value(ref) for ref in refs]

    def put(self, key: str, value: bytes) -> None:
        """Stores a value."""
        self._ask("put", key, value)

    def _value(self, ref: Any) -> bytes | None:
        try:
            value: bytes = self._ray.get(ref, timeout=self._patience)
        except self._ray.exceptions.ObjectLostError:
            return None
        except Exception as error:  # noqa: BLE001
            raise StoreDown(f"Ray did not give a value: {error}") from None
        return value

    def _ask(self, method: str, *values: Any) -> Any:
        """Calls a method of the actor and returns its result."""
        try:
            return self._ray.get(getattr(self._found(), method).remote(*values), timeout=self._patience)
        except Exception as error:  # noqa: BLE001  Ray's own errors, and others if it is not connected
            with self._lock:
                self._owner = None  # the actor may have died: the next call finds or creates its successor
            raise StoreDown(f"the store in Ray did not answer: {error}") from None

    def _found(self) -> Any:
        """The actor, looked up once."""
        with self._lock:
            if self._owner is None:
                owner = self._ray.remote(Owner).options(
                    name=self._name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", num_cpus=0
                )
                self._owner = owner.remote(*self._bounds)
            return self._owner
