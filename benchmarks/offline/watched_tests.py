"""A plugin of pytest for tests under the validation layers: few cases of each test, and which shaders were compiled.

    python -m pytest -p benchmarks.offline.watched_tests --cases 2 --shaders-to FILE TESTS

FILE gets the files, a line each, of all that devices of this process compiled: kernels, and parts of them.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rwkv_gpu.gpu.shader import Linked, Pipeline, PipelineCache


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=0, help="cases of a test in each mode of the device; 0 is all")
    parser.addoption("--shaders-to", type=Path, help="a file for the names of shaders that were compiled")


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
def shaders_compiled(pytestconfig: pytest.Config) -> Iterator[None]:
    """Writes at the end what was compiled."""
    compile_one, names = PipelineCache._compile, set[str]()

    def noted(self: PipelineCache, linked: Linked) -> Pipeline:
        names.update(file for file, _ in linked.origins if file.endswith(".wgsl"))
        return compile_one(self, linked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineCache, "_compile", noted)
        yield
    path = pytestconfig.getoption("--shaders-to")
    if path is not None:
        path.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
