"""A plugin of pytest for tests under the validation layers: few cases of each test, and which kernels were compiled.

    python -m pytest -p benchmarks.offline.watched_tests --cases 2 --kernels-to FILE TESTS

FILE gets the names of all kernels that devices of this process compiled, a line each.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rwkv_gpu.gpu import native
from rwkv_gpu.kernels.registry import KERNELS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=0, help="cases of a test in each mode of the device; 0 is all")
    parser.addoption("--kernels-to", type=Path, help="a file for the names of kernels that were compiled")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases of one test differ in sizes and formats; in each mode it has kernels of that mode."""
    most, kept, seen = config.getoption("--cases"), [], Counter[tuple[str, str]]()
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        mode = parameters.get("device") or parameters.get("opening") or ""
        place = item.nodeid.partition("[")[0], str(mode)
        seen[place] += 1
        if not most or seen[place] <= most:
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def kernels_compiled(pytestconfig: pytest.Config) -> Iterator[None]:
    """Writes at the end what was compiled."""
    create, names = native.create_module, set[str]()

    def noted(device: Any, source: str, name: str, checked: bool) -> Any:
        names.update(part.strip().partition(".")[0] for part in name.replace("&", "+").split("+"))
        return create(device, source, name, checked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "create_module", noted)
        yield
    path = pytestconfig.getoption("--kernels-to")
    if path is not None:
        path.write_text("".join(f"{name}\n" for name in sorted(names & set(KERNELS))), encoding="utf-8")
