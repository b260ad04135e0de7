"""What every store promises, and what bounds each of them."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakeredis import TcpFakeServer

from rwkv_gpu.stores import DirectoryStore, MemoryStore, Store, StoreDown, ValkeyStore


@pytest.fixture(scope="module")
def valkey_port() -> Iterator[int]:
    """A server that speaks the protocol of Valkey."""
    server = TcpFakeServer(("127.0.0.1", 0), server_type="valkey")
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["memory", "directory", "valkey"])
def store(request, tmp_path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    return ValkeyStore(f"valkey://127.0.0.1:{request.getfixturevalue('valkey_port')}/0")


def test_what_was_put_is_there_and_nothing_else(store):
    store.put("a1", b"one")
    store.put("b2", b"\0" * 100_000)
    assert store.get(["a1", "c3", "b2"]) == [b"one", None, b"\0" * 100_000]
    store.put("a1", b"new")
    assert store.get(["a1"]) == [b"new"]


def test_many_threads_see_whole_values(store):
    values = [bytes([n]) * 20_000 for n in range(8)]

    def work(n: int) -> bool:
        store.put("shared", values[n % 8])
        [found] = store.get(["shared"])
        return found in values

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))


def test_memory_is_bounded_in_bytes_and_forgets_what_was_not_used_for_longest():
    store = MemoryStore(max_bytes=30)
    for key in "abc":
        store.put(key, b"x" * 10)
    store.get(["a"])
    store.put("d", b"x" * 10)
    assert store.get(["a", "b", "c", "d"]) == [b"x" * 10, None, b"x" * 10, b"x" * 10]
    assert store.nbytes == 30
    store.put("e", b"x" * 31)
    assert store.get(["e"]) == [None]


def test_memory_is_bounded_in_age():
    now = [0.0]
    store = MemoryStore(max_age=10, clock=lambda: now[0])
    store.put("a", b"one")
    now[0] = 11
    assert store.get(["a"]) == [None]
    assert store.nbytes == 0


def test_a_directory_is_bounded_in_bytes_and_age(tmp_path):
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


def test_a_store_that_is_down_says_so(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreDown):
        DirectoryStore(tmp_path / "file")
    store = DirectoryStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreDown):
        store.put("a", b"one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    down = ValkeyStore(f"valkey://127.0.0.1:{port}/0")
    for call in (lambda: down.get(["a"]), lambda: down.put("a", b"one")):
        with pytest.raises(StoreDown):
            call()


def test_valkey_forgets_by_age(valkey_port):
    store = ValkeyStore(f"redis://127.0.0.1:{valkey_port}/0", max_age=0.2)
    store.put("short", b"one")
    assert store.get(["short"]) == [b"one"]
    time.sleep(0.4)
    assert store.get(["short"]) == [None]
