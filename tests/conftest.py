"""Fixtures for devices, and the selection of tests. Every GPU test runs on the same adapter in each mode."""

import gc
import itertools
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, Phase, settings

from rwkv_gpu.engine.host_runner import Blas
from rwkv_gpu.gpu.adapters import Adapter, choose, list_adapters
from rwkv_gpu.gpu.device import Capabilities, Device
from rwkv_gpu.gpu.shader import Linked, Pipeline, PipelineCache
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels import defaults
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import TILE, gemm_lane
from rwkv_gpu.kernels.registry import gemm_trials
from rwkv_gpu.kernels.tuning import Tuning
from tests.process import alive_on_gpus, give_back_freed_memory, peak
from tests.recording import KERNEL_OF

HERE = Path(__file__).resolve().parent

# fast is the users' mode, but with small tiles on software Vulkan; checked keeps naga's bounds checks, so an index out
# of bounds shows as a wrong number; portable uses the WebGPU defaults, so that the plain variants are tested
# wherever tests run.
MODES = {"fast": {}, "checked": {"checked": True}, "portable": {"portable": True}}

# In modes that users do not have, a test runs one of this many cases, and at least one. Compiling with bounds
# checks takes three times as long. All cases run in poisoned memory, which also reveals reads out of bounds.
SHARE = {"checked": 15, "portable": 8}
NOT_PORTABLE = {*KERNEL_OF.keys() - gemm_trials(LIMITS["default"]).keys(), "one_subgroup"}  # they need more features

# Other programs use the machine, too, so a slow test is not a failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# For tests.mutation: few examples, the same in every run; one failure is enough.
settings.register_profile(
    "mutation",
    settings.get_profile("patient"),
    max_examples=30,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)

# The order of files: long ones first, so that no process ends much later than the others; see --dist of the Makefile.
LONGEST = {
    "test_own_golden.py",
    "test_linear.py",
    "test_attention.py",
    "test_experts.py",
    "test_doctor_shaders.py",
    "test_plan_digests.py",
}
# `make test` leaves these to `make test-all`: they take at least ten seconds of CPU time each, or need a GPU.
LONG = {
    "cli/test_batch_devices.py",
    "cli/test_chat_terminal.py",  # a terminal for each test
    "cli/test_external_text.py",  # starts every command
    "cli/test_habits.py",  # starts every command several times
    "cli/test_streaming_terminal.py",
    "cli/test_servers.py",
    "cli/test_signals.py",
    "clients/test_sessions.py",
    "convert/test_convert.py",
    "convert/test_hub.py",
    "engine/test_context_shift.py",
    "engine/test_assistant.py",
    "engine/test_dflash.py",
    "engine/test_faults.py",
    "engine/test_heads.py",
    "export/test_page.py",
    "export/test_plans.py",
    "fuzz/test_adjacent_files.py",
    "fuzz/test_fuzz.py",
    "gguf/test_bad_files.py",
    "llm/test_head_features.py",
    "llm/test_head_files.py",
    "measure/test_constants.py",
    "measure/test_doctor_shaders.py",
    "measure/test_metal_traps.py",
    "measure/test_offline.py",
    "measure/test_plans.py",
    "models/test_any_batch.py",
    "models/test_eps.py",
    "models/test_numbers.py",
    "ops/test_adapters.py",
    "ops/test_matrix_units.py",
    "server/test_isolation.py",
    "server/test_operation_faults.py",  # starts and ends servers
    "server/test_preparing.py",
    "server/test_replicas.py",
    "server/test_schemas.py",
    "server/test_soak.py",
    "test_docs_commands.py",
    "test_package.py",
    "test_soak.py",
    "test_windows.py",
    "text/test_bpe.py",
    "text/test_grammar_closing.py",
    "text/test_hostile_templates.py",
}
RUNS_ON = {"opening", "where", "any_runner"}  # parameters that have "cpu" for a case without a GPU
END = "test_session_translates.py"  # checks the shaders that all other tests compiled

MAX_PIPELINES = 50  # maximum pipelines of all devices, some 7 MB each on a software GPU; a test needs few at a time
MAX_MEMORY = 1 << 32  # memory limit of a test process: 1.8 GiB if two share the files, 3.0 GiB if one runs nearly all


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="auto", help="the adapter to test: as --device of the command line")
    parser.addoption("--matrix-units", action="store_true", help="open devices with matrix units: tests/ops")
    parser.addoption("--every-mode", action="store_true", help="run all cases of every test in every mode")
    parser.addoption("--slow", action="store_true", help="also run whole models, long fuzzing, peers")


def uses_gpu(item: pytest.Item) -> bool:
    """True if a test opens a device: it has a device fixture, or the marker `gpu` if it starts a command."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    on_cpu = any("cpu" in (value if isinstance(value, tuple) else [value]) for value in map(params.get, RUNS_ON))
    return "gpu" in item.keywords or ("adapter" in item.fixturenames and not on_cpu)


def only_quick(config: pytest.Config) -> bool:
    """True in `make test`."""
    return bool(config.getoption("markexpr") == "quick")


def in_tests(path: Path) -> str:
    """Returns the path of a file within the tests, as LONG has it."""
    return str(path).removeprefix(f"{HERE}{os.sep}").replace(os.sep, "/")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks the tests that `make test` runs: those without a GPU, and GPU tests that are already marked `quick`."""
    if uses_gpu(item):
        item.add_marker("gpu")
    elif in_tests(item.path) in LONG:
        item.add_marker("long")
    elif {"slow", "long"}.isdisjoint(item.keywords):
        item.add_marker("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignores the page's tests, which need a browser, unless their folder is named as in `make test-page`.

    `make test` does not import files in which it would run nothing.
    """
    named = any("browser" in argument for argument in config.args)
    long = only_quick(config) and in_tests(collection_path) in LONG
    return True if long or (collection_path.name == "browser" and not named) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Collects, for `make test`, one case of each test on a GPU that it will not run, instead of all."""
    chosen = not RUNS_ON.isdisjoint(metafunc.fixturenames) or metafunc.definition.get_closest_marker("quick")
    if only_quick(metafunc.config) and "adapter" in metafunc.fixturenames and not chosen:
        metafunc.parametrize = lambda *_, **__: None  # type: ignore[method-assign]


def by_name(item: pytest.Item) -> int:
    """A sort key that spreads an order of cases over all parameters, the same in every run."""
    return zlib.crc32(item.nodeid.encode())


def repeated(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields redundant cases of tests marked `covering(n)`: the others have every combination of n values."""
    tests: dict[tuple[str, object], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("covering"):
            tests.setdefault((item.nodeid.partition("[")[0], item.callspec.params.get("device")), []).append(item)
    for cases in tests.values():
        count = cases[0].get_closest_marker("covering").args[0]
        covers = {item: together(item, count) for item in sorted(cases, key=by_name)}
        lacking = set().union(*covers.values())
        while lacking:
            best = max(covers, key=lambda item: len(covers[item] & lacking))
            lacking -= covers.pop(best)
        yield from covers


def together(item: pytest.Item, count: int) -> set[object]:
    """Returns all combinations of `count` values of a case, without the mode."""
    indices = {name: index for name, index in item.callspec.indices.items() if name != "device"}
    return set(itertools.combinations(sorted(indices.items()), min(count, len(indices))))


def sampled_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Returns all cases of each test except a sample, in each mode but `fast`. Most of a run is compilation."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        mode = params.get("device")
        if mode == "portable" and not NOT_PORTABLE.isdisjoint({params.get("tuning"), params.get("kind")}):
            left_out.add(item)
        elif mode in MODES and mode != "fast":
            cases.setdefault((item.nodeid.partition("[")[0], mode), []).append(item)
    for (_, mode), of_test in cases.items():
        of_test.sort(key=by_name)
        left_out.update(of_test[max(1, len(of_test) // SHARE[mode]) :])
    return left_out


@pytest.hookimpl(trylast=True)  # pytest's own order, by fixtures, comes first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ("last" in item.keywords, item.path.name not in LONGEST, item.path.name == END))
    slow: set[pytest.Item] = set()
    if not config.getoption("--slow"):
        for item in repeated(items):
            item.add_marker(pytest.mark.slow)
        slow = {item for item in items if "slow" in item.keywords}
    if not config.getoption("--every-mode"):
        left_out = sampled_out([item for item in items if item not in slow])
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in slow:
        item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


def pytest_collection_finish() -> None:
    """Freezes the objects made by collection: otherwise each garbage collection visits a million of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets a temporary cache folder, so that tests do not read or write the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RWKV_GPU_CACHE", str(folder))
        yield


TESTS = itertools.count()
ALIVE = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Returns freed memory to the system now and then: a file with many models would keep a gigabyte of it."""
    if next(TESTS) % 25 == 0:
        give_back_freed_memory()
    if "loses_gpu" in item.keywords:
        item.config.stash[ALIVE] = alive_on_gpus()
    if nextitem is None or nextitem.getparent(pytest.Module) is not item.getparent(pytest.Module):
        check_nothing_is_left_on_gpus(item)


def check_nothing_is_left_on_gpus(item: pytest.Item) -> None:
    """Fails the last test of a file if a GPU or command buffers were not released."""
    alive, before = alive_on_gpus(), item.config.stash.get(ALIVE, {})
    if alive != before:
        getattr(item, "funcargs", {}).clear()  # pytest would keep the results of its fixtures a moment longer
        gc.collect()
        alive = item.config.stash[ALIVE] = alive_on_gpus()
    if not item.session.testsfailed:  # a traceback keeps the objects of its frames
        assert all(count <= before.get(kind, 0) for kind, count in alive.items()), f"left on GPUs: {alive}"


@pytest.fixture(scope="session", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Fails if the number of devices, pipelines or plans in memory grows without bound."""
    yield
    assert peak() < MAX_MEMORY


@pytest.fixture(scope="module", autouse=True)
def nothing_outlives_its_module() -> Iterator[None]:
    """Fails a test file that leaves a socket open. Device memory is released after each file."""
    yield
    gc.collect()
    give_back_freed_memory()


@pytest.fixture(scope="session", autouse=True)
def one_thread_multiplies() -> None:
    """Limits numpy to one thread: with small models, threads wait for each other longer than they compute."""
    blas = Blas()
    if blas.set_threads is not None:
        blas.set_threads(1)


@pytest.fixture(scope="session", autouse=True)
def small_tiles() -> Iterator[None]:
    """Limits matrix tiles on software Vulkan to 4 rows of x: 16, as in kernel tests, take seconds to compile.

    Without subgroups their tiles have 32 sums for each lane instead of 64.
    """
    tuning_of, smaller = defaults.tuning_of, {TILE: replace(TILE, tb=32)}
    smaller |= {gemm_lane(r, tb): gemm_lane(2, 4) for r in (2, 4) for tb in (4, 8, 16)}

    def small(name: str, can: Capabilities) -> Tuning:
        tuning = tuning_of(name, can)
        if name not in ("webgpu", "software") or not can.software:
            return tuning
        return tuning.changed(gemm_table=tuple((limits, smaller.get(one, one)) for limits, one in tuning.gemm_table))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults, "tuning_of", small)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled() -> Iterator[dict[str, Linked]]:
    """Collects every shader that any device compiled since the session began, by its text, if naga is installed.

    All devices forget their pipelines when they are many.
    """
    shaders: dict[str, Linked] = {}
    caches: WeakSet[PipelineCache] = WeakSet()
    compile_one, read_later = PipelineCache._compile, shutil.which("naga") is not None

    def noted(self: PipelineCache, linked: Linked) -> Pipeline:
        caches.add(self)
        if sum(len(cache._pipelines) for cache in caches) >= MAX_PIPELINES:
            for cache in caches:
                cache.clear()
        pipeline = compile_one(self, linked)
        if read_later:
            shaders[linked.source] = linked
        return pipeline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineCache, "_compile", noted)
        yield shaders


@pytest.fixture(scope="session")
def adapter(pytestconfig: pytest.Config) -> Adapter:
    """Returns the adapter named by --device; by default a real GPU, otherwise software Vulkan."""
    adapters = list_adapters()
    chosen = choose(adapters, pytestconfig.getoption("--device")).adapter
    software = [a for a in adapters if a.backend == "Vulkan"]
    if chosen is None and not software:
        pytest.skip("no GPU adapter: install a Vulkan driver (apt install mesa-vulkan-drivers)")
    return chosen or software[0]


@pytest.fixture(scope="session")
def rounding(adapter: Adapter) -> float:
    """Returns the allowed deviation (rms) of logits if the device quantises rows of x, else 0."""
    with Device(adapter) as device:
        return 6e-4 if any(limits.packed for limits, _ in default_tuning(device.capabilities).gemm_table) else 0.0


@pytest.fixture(scope="module", params=MODES)
def device(request: pytest.FixtureRequest, adapter: Adapter) -> Iterator[Device]:
    """Opens the device in each mode, for one test module. Its memory is released when it is closed."""
    units = request.config.getoption("--matrix-units") and request.param != "portable"
    with Device(adapter, matrix_units=units, **MODES[request.param]) as opened:
        yield opened


@pytest.fixture(params=["cpu", *MODES])
def opening(request: pytest.FixtureRequest, adapter: Adapter) -> dict[str, object]:
    """Returns options to load a model: in numpy, and on the GPU in each mode."""
    if request.param == "cpu":
        return {"device": "cpu"}
    return {"device": str(adapter.index), **MODES[request.param]}


@pytest.fixture(scope="module")
def fast_device(pytestconfig: pytest.Config, adapter: Adapter) -> Iterator[Device]:
    """Returns the device in the mode of users, for tests that do not depend on the mode."""
    with Device(adapter, matrix_units=pytestconfig.getoption("--matrix-units")) as opened:
        yield opened
