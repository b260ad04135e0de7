"""Compares the catalogue with the hub: `make check-catalogue`. Prints each difference; exits with 1 if there is one."""

import sys
from collections.abc import Iterator

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm import hub_names
from rwkv_gpu.llm.catalogue import Entry, packaged
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.repository import ENDPOINT

NEAR = 0.01  # share by which a rounded size may differ


def differences(entry: Entry, hub: Hub) -> Iterator[str]:
    """Returns the differences between the catalogue and the hub for a model."""
    try:
        files = hub.repository(entry.repository).files()
        found = hub_names.choose(
            entry.repository, sorted(name for name in files if hub_names.is_model(name)), entry.file
        )
    except BadInput as error:
        yield str(error)
        return
    nbytes = sum(files[part].nbytes for part in hub_names.parts(found) if part in files)
    if abs(nbytes - entry.nbytes) > NEAR * nbytes:
        yield f"{found} has {nbytes:,} bytes, and not {entry.nbytes:,}"
    if entry.mmproj is not None and entry.mmproj not in files:
        yield f"there is no {entry.mmproj} in {entry.repository}"


def main() -> int:
    """Checks all models. The first argument may be another hub's address."""
    hub = Hub(endpoint=sys.argv[1] if len(sys.argv) > 1 else ENDPOINT)
    wrong = [f"{entry.name}: {text}" for entry in packaged().entries for text in differences(entry, hub)]
    print("\n".join(wrong) or f"all {len(packaged().entries)} models are on the hub")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
