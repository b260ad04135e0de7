"""The guarantees of all stores, and the limits of each."""

import itertools
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.stores import (
    DirectoryStore,
    FilesystemStore,
    MemoryStore,
    RayStore,
    Store,
    StoreDown,
    ValkeyStore,
    open_store,
)
from tests.process import PATIENCE


@pytest.fixture(scope="module")
def valkey_port() -> Iterator[int]:
    """Starts a server that uses Valkey's protocol."""
    from fakeredis import TcpFakeServer

    server = TcpFakeServer(("127.0.0.1", 0), server_type="valkey")
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def ray() -> Iterator[ModuleType]:
    """Starts a Ray cluster of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    yield ray
    ray.shutdown()


NAMES = itertools.count()
MAKERS = {
    "memory": lambda request, **bounds: MemoryStore(**bounds),
    "directory": lambda request, **bounds: DirectoryStore(request.getfixturevalue("tmp_path"), **bounds),
    "valkey": lambda request, **bounds: ValkeyStore(
        f"valkey://127.0.0.1:{request.getfixturevalue('valkey_port')}/{next(NAMES) % 16}", **bounds
    ),
    "fsspec memory": lambda request, **bounds: FilesystemStore(f"memory://states/{next(NAMES)}", **bounds),
    "fsspec file": lambda request, **bounds: FilesystemStore(
        f"file://{request.getfixturevalue('tmp_path')}/states", **bounds
    ),
    "ray": lambda request, **bounds: request.getfixturevalue("ray") and RayStore(f"test {next(NAMES)}", **bounds),
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) if name == "ray" else name for name in MAKERS])
def make(request) -> Callable[..., Store]:
    """Returns a new store with limits."""
    return partial(MAKERS[request.param], request)


@pytest.fixture
def store(make) -> Store:
    return make()


def test_a_store_returns_stored_values_only(store):
    store.put("a1", b"one")
    store.put("b2", b"\0" * 100_000)
    assert store.get(["a1", "c3", "b2"]) == [b"one", None, b"\0" * 100_000]
    store.put("a1", b"new")
    assert store.get(["a1"]) == [b"new"]


def test_many_threads_see_whole_values(store):
    """Windows may hide a value while it is replaced."""
    values = [bytes([n]) * 20_000 for n in range(8)]

    def work(n: int) -> bool:
        store.put("shared", values[n % 8])
        [found] = store.get(["shared"])
        return found in values or (os.name == "nt" and found is None)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))


def test_every_store_is_bounded_in_bytes_and_keeps_new_values(make):
    store = make(max_bytes=4000)
    for n in range(60):
        store.put(f"k{n}", b"%03d" % n * 33)
    kept = [value for value in store.get([f"k{n}" for n in range(60)]) if value is not None]
    assert 0 < sum(map(len, kept)) <= 4000 + 4000 // 16
    assert store.get(["k59", "k0"]) == [b"059" * 33, None]
    store.put("large", b"x" * 4001)
    assert store.get(["large", "k59"]) == [None, b"059" * 33]


def test_every_store_is_bounded_in_age(make):
    long, short = make(max_age=PATIENCE), make(max_age=0.3)
    long.put("long", b"one")
    assert long.get(["long"]) == [b"one"]
    short.put("short", b"one")
    time.sleep(0.4)  # some stores count from the last use
    assert short.get(["short"]) == [None]


def test_files_of_other_programs_are_never_evicted(tmp_path):
    (tmp_path / "mine.txt").write_text("precious" * 100)
    store = FilesystemStore(f"file://{tmp_path}", max_bytes=100)
    for n in range(20):
        store.put(f"k{n}", b"x" * 40)
    assert (tmp_path / "mine.txt").exists()
    assert len(list(tmp_path.iterdir())) <= 4


def test_a_name_finds_its_store(tmp_path):
    assert isinstance(open_store(tmp_path), DirectoryStore)
    assert isinstance(open_store("valkey://127.0.0.1:1"), ValkeyStore)
    assert isinstance(open_store("memory://states/a"), FilesystemStore)
    with pytest.raises(BadInput, match="nosuch"):
        open_store("nosuch://states")


def test_memory_is_bounded_in_bytes_and_evicts_the_least_recently_used():
    store = MemoryStore(max_bytes=30)
    for key in "abc":
        store.put(key, b"x" * 10)
    store.get(["a"])
    store.put("d", b"x" * 10)
    assert store.get(["a", "b", "c", "d"]) == [b"x" * 10, None, b"x" * 10, b"x" * 10]
    assert store.nbytes == 30
    store.put("e", b"x" * 31)
    assert store.get(["e"]) == [None]


def test_the_memory_store_drops_values_that_are_too_old():
    now = [0.0]
    store = MemoryStore(max_age=10, clock=lambda: now[0])
    store.put("a", b"one")
    now[0] = 11
    assert store.get(["a"]) == [None]
    assert store.nbytes == 0


def test_a_directory_drops_old_values_and_keeps_its_limit_of_bytes(tmp_path):
    store = DirectoryStore(tmp_path, max_bytes=1000, max_age=100)
    for n in range(50):
        store.put(f"k{n}", b"x" * 90)
        os.utime(tmp_path / f"k{n}.state", (time.time() - 60 + n, time.time() - 60 + n))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.state")) <= 1000 + 1000 // 32
    assert store.get(["k49", "k0"]) == [b"x" * 90, None]
    os.utime(tmp_path / "k49.state", (0, 0))
    assert store.get(["k49"]) == [None]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_key_of_a_directory_is_made_once_and_is_its_owners(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: DirectoryStore(tmp_path).secret(), range(16)))
    assert len(secrets) == 1
    assert len(secrets.pop()) == 32
    if os.name == "posix":
        assert (tmp_path / "key").stat().st_mode & 0o077 == 0


def test_an_unreachable_store_is_reported(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreDown):
        DirectoryStore(tmp_path / "file")
    with pytest.raises(StoreDown, match="null"):
        DirectoryStore("a\0b")
    store = DirectoryStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreDown):
        store.put("a", b"one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    down = ValkeyStore(f"valkey://127.0.0.1:{port}/0")
    broken = FilesystemStore(f"file://{tmp_path}/states")
    (tmp_path / "states").rmdir()
    (tmp_path / "states").write_text("not a folder")
    calls = [partial(down.get, ["a"]), partial(down.put, "a", b"1"), partial(broken.put, "a", b"1")]
    if os.name != "nt":  # it does not distinguish a missing file from a missing folder
        calls.append(partial(broken.get, ["a"]))
    for call in calls:
        with pytest.raises(StoreDown):
            call()


def test_a_key_that_was_cut_short_is_refused_with_the_remedy(tmp_path):
    secret = DirectoryStore(tmp_path).secret()
    for content in (b"", secret[:-1], secret + b"x"):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(StoreDown, match="is not a key of 32 bytes; delete it"):
            DirectoryStore(tmp_path).secret()
    (tmp_path / "key").unlink()
    assert len(DirectoryStore(tmp_path).secret()) == 32


def test_files_of_killed_writers_are_removed_and_those_of_running_writers_stay(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("a", b"1")
    old, new, other = (tmp_path / name for name in (f".{'0' * 16}", f".{'1' * 16}", ".other"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    DirectoryStore(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [new.name, ".other", "a.state"]
