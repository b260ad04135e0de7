"""Several models: found by name, loaded at their first use, unloaded when memory is short."""

import gc
import platform
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from rwkv_gpu.errors import OutOfMemory
from rwkv_gpu.server import collector
from rwkv_gpu.server.catalogue import ServedModel
from tests.process import PATIENCE
from tests.server.gate import gate, until
from tests.server.serving import LLAMA, MODEL, load, serving

ASK = {"prompt": "The sea", "max_tokens": 3, "temperature": 0}


def asked(server, model, **more):
    return server.request("POST", "/v1/completions", {**ASK, "model": model, **more})


def states(server):
    return {model["id"]: model["state"] for model in server.request("GET", "/health")[2]["models"]}


def seconds_left(server, name):
    [model] = [model for model in server.get("/api/ps")["models"] if model["name"] == f"{name}:latest"]
    return (datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)).total_seconds()


def three():
    return [ServedModel(name, str(path), (f"my-{name}",)) for name, path in [("a", MODEL), ("b", LLAMA), ("c", MODEL)]]


def test_a_model_is_loaded_at_its_first_use_and_found_by_each_of_its_names():
    with serving(*three()) as server:
        assert states(server) == {"a": "ready", "b": "unloaded", "c": "unloaded"}
        for name in ("b", "my-b", "b:latest"):
            status, _, answer = asked(server, name)
            assert (status, answer["model"]) == (200, "b")
        assert states(server) == {"a": "ready", "b": "ready", "c": "unloaded"}
        assert asked(server, None)[2]["model"] == "a"
        status, _, answer = asked(server, "d")
        assert status == 404
        assert "a, b, c" in answer["error"]["message"]


def test_many_waiting_requests_load_a_model_once():
    loads = []

    def counting(path, progress):
        loads.append(path)
        return load(path, progress)

    with serving(*three(), load=counting) as server:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(asked(server, "b")[0])) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [200] * 6
        assert loads.count(str(LLAMA)) == 1


def test_the_loading_progress_of_a_model_is_shown():
    rest = threading.Event()

    def slow(path, progress):
        if path == str(LLAMA):
            progress(30, 100)
            assert rest.wait(PATIENCE)
        return load(path, progress)

    with serving(*three(), load=slow) as server, ThreadPoolExecutor() as threads:
        answer = threads.submit(asked, server, "b")
        until(lambda: states(server)["b"] == "loading")
        shown = {"id": "b", "state": "loading", "aliases": ["my-b"], "loaded_bytes": 30, "total_bytes": 100}
        until(lambda: shown in server.get("/health")["models"])
        rest.set()
        assert answer.result()[0] == 200


def test_the_model_idle_longest_is_unloaded_if_memory_is_short():
    loaded = []

    def tight(path, progress):
        """Limits memory to two models."""
        loaded[:] = [llm for llm in loaded if llm._finalizer.alive]
        if len(loaded) == 2:
            raise OutOfMemory("no room")
        loaded.append(load(path, progress))
        return loaded[-1]

    with serving(*three(), load=tight) as server:
        for name in "aba":
            assert asked(server, name)[0] == 200
        assert asked(server, "c")[0] == 200
        assert states(server) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert asked(server, "b")[0] == 200
        assert states(server) == {"a": "unloaded", "b": "ready", "c": "ready"}


def test_a_model_waits_for_the_memory_of_one_that_is_in_use():
    with serving(*three(), catalogue={"max_loaded": 1}) as server:
        with gate(server) as held, ThreadPoolExecutor(9) as threads:
            answers = [threads.submit(asked, server, "a")]
            until(lambda: server.engine.busy)
            answers += [threads.submit(asked, server, name) for name in "bcbcbcab"]
            until(lambda: len(server.service._calls) == 9)
            held.open = True
            assert [answer.result()[0] for answer in answers] == [200] * 9
        assert sorted(states(server).values()) == ["ready", "unloaded", "unloaded"]


def test_a_model_in_use_is_not_unloaded(monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.catalogue.PATIENCE", 0.05)
    with serving(*three(), catalogue={"max_loaded": 1}) as server:
        with gate(server) as held:
            answer = []
            thread = threading.Thread(target=lambda: answer.append(asked(server, "a")[2]))
            thread.start()
            until(lambda: server.engine.busy)
            status, headers, refused = asked(server, "b")
            assert (status, refused["error"]["code"]) == (503, "model_load_failed")
            assert "retry-after" in headers
            held.open = True
            thread.join(PATIENCE)
        assert answer[0]["choices"][0]["text"]
        assert asked(server, "b")[0] == 200
        assert states(server) == {"a": "unloaded", "b": "ready", "c": "unloaded"}


def test_an_idle_model_is_unloaded_after_a_while_and_reloaded():
    with serving(*three(), catalogue={"keep_alive": 0.1}) as server:
        until(lambda: states(server)["a"] == "unloaded")  # also before its first request
        assert asked(server, "a")[0] == 200
        until(lambda: states(server)["a"] == "unloaded")
        assert server.request("GET", "/health")[0] == 200, "a server whose model is unloaded is ready"
        assert asked(server, "a")[0] == 200


def test_unloading_a_model_ends_its_keep_alive():
    with serving(*three(), catalogue={"keep_alive": 3600.0}) as server:
        ask = {"model": "b", "prompt": "hello", "raw": True, "stream": False, "options": {"num_predict": 1}}
        server.post("/api/generate", {**ask, "keep_alive": 0})
        until(lambda: states(server)["b"] == "unloaded")
        assert asked(server, "b")[0] == 200
        assert 3500 < seconds_left(server, "b") <= 3600
        server.post("/api/generate", {**ask, "keep_alive": -1})
        assert asked(server, "b")[0] == 200
        assert seconds_left(server, "b") > 1e9, "what a client asks for counts more than --keep-alive"


def test_a_model_in_use_is_unloaded_after_its_last_request():
    with serving(*three()) as server:
        with gate(server) as held, ThreadPoolExecutor() as threads:
            answer = threads.submit(asked, server, "a")
            until(lambda: server.engine.busy)
            assert server.post("/api/generate", {"model": "a", "keep_alive": 0})["done_reason"] == "unload"
            assert states(server)["a"] == "ready"
            held.open = True
            assert answer.result()[0] == 200
        until(lambda: states(server)["a"] == "unloaded")


def test_a_folder_is_served_and_reread(tmp_path, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.catalogue.LISTING_SECONDS", 0.0)
    (tmp_path / "sub").mkdir()
    shutil.copy(MODEL, tmp_path / "sub" / "one.gguf")
    (tmp_path / "two-00001-of-00002.gguf").write_bytes(b"a first part")
    (tmp_path / "two-00002-of-00002.gguf").write_bytes(b"a later part")
    (tmp_path / "notes.txt").write_text("no model")
    with serving(catalogue={"folder": tmp_path}) as server:
        assert [model["id"] for model in server.get("/v1/models")["data"]] == ["sub/one", "two"]
        assert asked(server, None)[2]["model"] == "sub/one"
        assert server.get("/v1/models/sub/one")["id"] == "sub/one"
        shutil.copy(LLAMA, tmp_path / "new.gguf")
        assert asked(server, "new")[0] == 200
        for name in ("../sub/one", str(tmp_path / "new.gguf"), "new.gguf", "sub/../new", "/etc/passwd", ""):
            assert asked(server, name)[0] == 404


def test_a_crafted_file_in_the_folder_fails_alone(tmp_path):
    shutil.copy(MODEL, tmp_path / "good.gguf")
    (tmp_path / "bad.gguf").write_bytes(MODEL.read_bytes()[:5000] + b"\xff" * 50_000)
    with serving(catalogue={"folder": tmp_path}) as server:
        before = asked(server, "good")[2]["choices"]
        status, _, answer = asked(server, "bad")
        assert (status, answer["error"]["code"]) == (500, "model_load_failed")
        assert states(server)["bad"] == "failed"
        assert asked(server, "good")[2]["choices"] == before


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
def test_every_api_takes_the_name(path):
    with serving(*three()) as server:
        body = {"messages": [{"role": "user", "content": "a"}], "input": "a", "max_tokens": 1, "model": "my-c"}
        assert server.post(path, body)["model"] == "c"


def test_a_model_without_a_chat_template_is_reported_and_has_props():
    with serving(ServedModel("b", str(LLAMA))) as server:
        status, _, answer = server.request(
            "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
        )
        assert status == 400
        assert "--template" in answer["error"]["message"]
        assert server.get("/props")["chat_template"] is None


def test_the_garbage_collector_skips_a_loaded_model_and_frees_a_closed_one():
    gc.collect()
    before, llms = gc.get_freeze_count(), []

    def loaded(path, progress):
        llms.append(weakref.ref(llm := load(path, progress)))
        llm.itself = llm  # only the garbage collector frees an object that refers to itself
        return llm

    try:
        with serving(*three(), load=loaded, catalogue={"max_loaded": 1, "own_process": True}) as server:
            assert gc.get_freeze_count() > before
            assert asked(server, "b")[0] == 200
            assert [one() is None for one in llms] == [True, False]
    finally:
        collector.freeze_objects()


COUNT_ARENAS = """
import ctypes, sys, tempfile, threading
from rwkv_gpu.server.collector import share_arenas

if sys.argv[1] == "shared":
    share_arenas()
everyone = threading.Barrier(7)
def work():
    data = bytearray(5000)
    everyone.wait()
threads = [threading.Thread(target=work) for _ in range(7)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
c = ctypes.CDLL(None)
c.fopen.restype, c.fclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
c.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
with tempfile.NamedTemporaryFile() as file:
    stream = c.fopen(file.name.encode(), b"w")
    c.malloc_info(0, stream)
    c.fclose(stream)
    print(file.read().count(b"<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no arenas")
def test_the_threads_of_a_server_share_few_arenas():
    """Each arena of glibc keeps freed memory, so a server with many threads grew."""
    found = {}
    for how in ("shared", "apart"):
        run = subprocess.run([sys.executable, "-c", COUNT_ARENAS, how], capture_output=True, check=True)
        found[how] = int(run.stdout)
    assert found["shared"] <= 2 < found["apart"]
