"""Models are loaded, unloaded, downloaded, copied and deleted over HTTP, by holders of an admin key."""

import contextlib
import json
import threading

import pytest

from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.store import Store
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.pulls import Pulls
from tests.llm.hub_server import serving as hub_serving
from tests.process import PATIENCE, until
from tests.server.serving import LLAMA, MODEL, load, serving

KEY = {"authorization": "Bearer admin"}
FILE = "quiet-Q4_K_M.gguf"
NAME = "hf.co/owner/name:Q4_K_M"
STORED = f"owner/name/{FILE.removesuffix('.gguf')}"
ASK = {"prompt": "The sea", "max_tokens": 2, "temperature": 0}


@contextlib.contextmanager
def managed(folder, *models, files=None, most=1 << 30, load=load, **config):
    """Starts a server whose downloads come from a hub on this machine."""
    with hub_serving({FILE: MODEL.read_bytes()} if files is None else files) as hub:
        store = Store(folder)
        with serving(
            *(models or (ServedModel("given", str(LLAMA)),)), load=load,
            catalogue={"store": store}, admin_keys=("admin",), **config,
        ) as server:  # fmt: skip
            server.service.pulls = Pulls(Hub(folder=folder, endpoint=hub.url), most)
            server.hub = hub
            yield server


def listed(server):
    return {one["id"]: one for one in server.get("/models")["data"]}


def value(server, name):
    return listed(server)[name]["status"]["value"]


def lines(content):
    return [json.loads(line) for line in content.splitlines()]


def test_only_an_admin_key_and_pages_of_the_server_manage_models(tmp_path):
    calls = [
        ("POST", "/models", {"model": NAME}), ("DELETE", "/models?model=given", None),
        ("POST", "/models/load", {"model": "given"}), ("POST", "/models/unload", {"model": "given"}),
        ("POST", "/api/pull", {"model": NAME}), ("DELETE", "/api/delete", {"model": "given"}),
        ("POST", "/api/copy", {"source": "given", "destination": "b"}),
        ("POST", "/api/create", {"model": "b", "from": "given"}),
    ]  # fmt: skip
    with serving() as server:
        for method, path, body in calls:
            status, _, answer = server.request(method, path, body, **KEY)
            assert status == 403 and "--admin-key-file" in json.dumps(answer), path
    with managed(tmp_path, api_keys=("user",), cors=("https://page.example",)) as server:
        for method, path, body in calls:
            assert server.request(method, path, body)[0] == 401
            status, _, answer = server.request(method, path, body, authorization="Bearer user")
            assert status == 401 and "admin key" in json.dumps(answer), path
            for origin in ("https://page.example", "https://other.example", "null"):
                assert server.request(method, path, body, origin=origin, **KEY)[0] == 403, (path, origin)
        assert not server.hub.asked and not any(tmp_path.iterdir())
        assert server.request("GET", "/models", **KEY)[0] == 200, "an admin key is a key"
        own = f"http://localhost:{server.port}"
        assert server.request("POST", "/models/unload", {"model": "given"}, origin=own, **KEY)[0] == 200


def test_models_are_loaded_and_unloaded_as_by_llama_servers_router(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model")
    models = [ServedModel(name, str(path)) for name, path in (("a", MODEL), ("b", LLAMA), ("bad", bad))]
    with managed(tmp_path / "store", *models) as server:
        assert [value(server, name) for name in ("a", "b")] == ["loaded", "unloaded"]
        assert listed(server)["b"]["meta"]["size"] == LLAMA.stat().st_size
        assert server.post("/models/load", {"model": "b"}, **KEY) == {"success": True}
        until(lambda: value(server, "b") == "loaded")
        assert server.request("POST", "/models/load", {"model": "b"}, **KEY)[0] == 400
        assert server.post("/models/unload", {"model": "b"}, **KEY) == {"success": True}
        assert value(server, "b") == "unloaded"
        assert server.request("POST", "/models/unload", {"model": "b"}, **KEY)[0] == 400
        assert server.post("/v1/completions", {**ASK, "model": "b"}, **KEY)["model"] == "b", "it comes back"
        server.post("/models/load", {"model": "bad"}, **KEY)
        until(lambda: listed(server)["bad"]["status"] == {"value": "unloaded", "failed": True})
        for path in ("/models/load", "/models/unload"):
            assert server.request("POST", path, {"model": "none"}, **KEY)[0] == 404
            for body in ({}, {"model": 3}, {"model": ""}, {"model": None}):
                assert server.request("POST", path, body, **KEY)[0] == 400


def test_a_model_is_unloaded_after_it_has_loaded(tmp_path):
    rest = threading.Event()

    def slow(path, progress):
        if path == str(MODEL):
            assert rest.wait(PATIENCE)
        return load(path, progress)

    models = ServedModel("a", str(LLAMA)), ServedModel("b", str(MODEL))
    with managed(tmp_path, *models, load=slow) as server:
        server.post("/models/load", {"model": "b"}, **KEY)
        until(lambda: value(server, "b") == "loading")
        server.post("/models/unload", {"model": "b"}, **KEY)
        rest.set()
        until(lambda: value(server, "b") == "unloaded")


def test_a_pulled_model_is_listed_used_and_deleted(tmp_path):
    with managed(tmp_path) as server:
        status, headers, content = server.request("POST", "/api/pull", {"model": NAME}, **KEY)
        assert (status, headers["content-type"]) == (200, "application/x-ndjson")
        found = lines(content)
        assert found[0] == {"status": "pulling manifest"} and found[-1] == {"status": "success"}
        size = MODEL.stat().st_size
        want = {
            "status": f"pulling {FILE}", "digest": f"sha256:{server.hub.sums[FILE]}", "total": size, "completed": size
        }  # fmt: skip
        assert want in found
        assert listed(server)[STORED]["meta"] == {"size": size}
        assert {"name": f"{STORED}:latest", "size": size}.items() <= server.get("/api/tags")["models"][-1].items()
        for name in (STORED, NAME, "owner/name", FILE.removesuffix(".gguf")):
            assert server.post("/v1/completions", {**ASK, "model": name})["model"] == STORED
        again = server.post("/api/pull", {"name": NAME, "stream": False}, **KEY)
        assert again == {"status": "success"} and len(server.hub.asked) == 1, "it is here already"
        assert server.request("DELETE", "/api/delete", {"model": NAME}, **KEY)[::2] == (200, {})
        assert STORED not in listed(server) and not any(tmp_path.iterdir())
        assert server.request("DELETE", "/api/delete", {"model": NAME}, **KEY)[0] == 404


def test_a_file_of_the_command_line_is_not_deleted(tmp_path):
    model = tmp_path / "own.gguf"
    model.write_bytes(LLAMA.read_bytes())
    with managed(tmp_path / "store", ServedModel("own", str(model))) as server:
        assert server.request("DELETE", "/models?model=own", **KEY)[0] == 403
        assert server.request("DELETE", "/models?model=../own", **KEY)[0] == 404
        assert server.request("DELETE", "/models", **KEY)[0] == 400
    assert model.exists()


def test_a_download_in_the_background_is_shown_and_cancelled(tmp_path):
    with managed(tmp_path) as server:
        pulls, held = server.service.pulls, threading.Event()
        reserve = pulls._reserve

        def waiting(pull, nbytes):
            assert held.wait(PATIENCE)
            reserve(pull, nbytes)

        pulls._reserve = waiting
        for _ in range(2):  # the second joins the first
            assert server.post("/models", {"model": NAME}, **KEY) == {"success": True}
        assert value(server, NAME) == "downloading"
        server.post("/models/unload", {"model": NAME}, **KEY)
        held.set()
        until(lambda: NAME not in listed(server))
        assert not server.hub.asked
        server.post("/models", {"model": NAME}, **KEY)
        server.service.catalogue.refresh()
        until(lambda: STORED in listed(server))
        assert server.request("DELETE", f"/models?model={STORED}", **KEY)[2] == {"success": True}
        assert not any(tmp_path.iterdir())


def test_a_pull_ends_with_its_client_and_continues_where_it_stopped(tmp_path):
    with managed(tmp_path) as server:
        pulls, held = server.service.pulls, threading.Event()
        progress = pulls._progress

        def waiting(pull, file):
            report = progress(pull, file)

            def held_report(done, total):
                if done:
                    assert held.wait(PATIENCE)
                report(done, total)

            return held_report

        pulls._progress = waiting
        connection = server.connect()
        connection.request("POST", "/api/pull", json.dumps({"model": NAME}), KEY)
        response = connection.getresponse()
        assert json.loads(response.readline()) == {"status": "pulling manifest"}
        until(lambda: pulls.running and pulls.running[0].done)
        response.close()
        connection.close()
        until(lambda: pulls.running[0].stopped)
        held.set()
        until(lambda: not pulls.running)
        assert [path.suffix for path in tmp_path.rglob("*.gguf*")] == [".part"]
        assert server.post("/api/pull", {"model": NAME, "stream": False}, **KEY) == {"status": "success"}
        assert [path.name for path in tmp_path.rglob("*.gguf*")] == [FILE]


def test_downloads_are_refused_beyond_the_limit_of_the_folder(tmp_path):
    size = MODEL.stat().st_size
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "other.bin").write_bytes(bytes(1000))
    with managed(tmp_path, most=size + 999) as server:
        status, _, answer = server.request("POST", "/api/pull", {"model": NAME, "stream": False}, **KEY)
        assert status == 400 and "--max-disk" in answer["error"]
        last = lines(server.request("POST", "/api/pull", {"model": NAME}, **KEY)[2])[-1]
        assert "--max-disk" in last["error"] and not server.hub.asked
        server.service.pulls._max_bytes += 1
        assert server.post("/api/pull", {"model": NAME, "stream": False}, **KEY) == {"status": "success"}


def test_the_error_of_a_failed_pull_is_one_sentence(tmp_path):
    with managed(tmp_path) as server:
        for name in ("../up", "/etc/passwd", "hf.co/owner/none:Q4_K_M", "hf.co/owner/name:Q9", str(MODEL), "a b"):
            status, _, answer = server.request("POST", "/api/pull", {"model": name, "stream": False}, **KEY)
            assert status == 400 and isinstance(answer["error"], str), name
        server.hub.sums[FILE] = "0" * 64
        last = lines(server.request("POST", "/api/pull", {"model": NAME}, **KEY)[2])[-1]
        assert "damaged" in last["error"]
    assert not list(tmp_path.rglob("*.gguf*"))


def test_a_copy_takes_no_disk_space_and_outlives_its_source(tmp_path):
    with managed(tmp_path) as server:
        server.post("/api/pull", {"model": NAME, "stream": False}, **KEY)
        store = server.service.pulls.hub.store
        before = store.nbytes
        assert server.post("/api/copy", {"source": NAME, "destination": "mine:latest"}, **KEY) == {}
        made = server.request("POST", "/api/create", {"model": "team/ours", "from": "mine"}, **KEY)
        assert lines(made[2]) == [{"status": "success"}]
        assert store.nbytes == before
        server.request("DELETE", "/api/delete", {"model": NAME}, **KEY)
        assert {"mine", "team/ours"} <= listed(server).keys() and STORED not in listed(server)
        assert server.post("/v1/completions", {**ASK, "model": "mine"})["model"] == "mine"
        for name in ("mine", "given", "../out", "a/../../b", "/a", ".hidden", "a:tag", "x-00001-of-00002", "n" * 300):
            body = {"source": "mine", "destination": name}
            status, _, answer = server.request("POST", "/api/copy", body, **KEY)
            assert status == 400 and isinstance(answer["error"], str), name
        assert server.request("POST", "/api/copy", {"source": "none", "destination": "b"}, **KEY)[0] == 404
        for field in ("files", "adapters", "quantize"):
            more = {"model": "b", "from": "mine", field: {"a": "b"}}
            status, _, answer = server.request("POST", "/api/create", more, **KEY)
            assert status == 400 and answer["error"].startswith(f"{field} is not supported")


def test_a_preset_is_created_used_shown_replaced_and_deleted(tmp_path):
    with managed(tmp_path) as server:
        fields = {
            "model": "sea", "from": "given", "system": "Be brief.", "template": "{{ .System }} {{ .Prompt }}:",
            "parameters": {"num_predict": 2, "temperature": 0, "stop": ["zzz"], "num_gpu": 1},
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}],
            "license": ["MIT"],
        }  # fmt: skip
        made = server.request("POST", "/api/create", fields, **KEY)
        assert lines(made[2]) == [{"status": "success"}]
        assert "sea" in listed(server)
        asked = {"messages": [{"role": "user", "content": "What is wide?"}]}
        answer = server.post("/v1/chat/completions", {**asked, "model": "sea"})
        assert answer["usage"]["completion_tokens"] <= 2
        prompt = server.post("/apply-template", {**asked, "model": "sea"})["prompt"]
        assert prompt == "Be brief. Hi:Ahoy What is wide?:"
        shown = server.post("/api/show", {"model": "sea"})
        assert shown["system"] == "Be brief." and "num_ctx" not in shown["parameters"]
        assert "num_predict 2" in shown["parameters"] and str(tmp_path) not in shown["modelfile"]
        text = 'FROM sea\nSYSTEM """Be long."""\nPARAMETER num_predict 1'
        assert server.post("/api/create", {"model": "sea", "modelfile": text, "stream": False}, **KEY) == {
            "status": "success"
        }
        assert server.post("/api/show", {"model": "sea:latest"})["system"] == "Be long."
        assert server.post("/v1/chat/completions", {**asked, "model": "sea"})["usage"]["completion_tokens"] == 1
        bad = [
            {"model": "given", "system": "a", "from": "given"}, {"model": "b", "system": "a"},
            {"model": "b", "system": "a", "from": "none"}, {"model": "b", "system": 3, "from": "given"},
            {"model": "b", "parameters": [1], "from": "given"}, {"model": "b", "parameters": {"x": 1}, "from": "given"},
            {"model": "b", "messages": [{"role": "x"}], "from": "given"},
            {"model": "../b", "system": "a", "from": "given"}, {"model": "b", "modelfile": "FROM /etc/passwd"},
            {"model": "b", "modelfile": "FROM given\nADAPTER /etc/passwd"},
            {"model": "b", "template": "{{ nonsense . }}", "from": "given"},
            {"model": "b", "messages": 3, "from": "given"}, {"model": "b", "license": {"a": 1}, "from": "given"},
        ]  # fmt: skip
        for body in bad:
            status, _, answer = server.request("POST", "/api/create", body, **KEY)
            assert status in (400, 404) and isinstance(answer["error"], str), body
        server.request("DELETE", "/api/delete", {"model": "sea"}, **KEY)
        assert "sea" not in listed(server) and "b" not in listed(server)
        assert not [*tmp_path.rglob("*.json")]


@pytest.mark.parametrize("path", ["/models/unload", "/api/delete"])
def test_a_server_of_one_model_that_takes_any_name_manages_it_by_its_own_only(tmp_path, path):
    with managed(tmp_path) as server:
        server.service.catalogue._any_name = True
        assert server.post("/v1/completions", {**ASK, "model": "gpt-4o"})["model"] == "given"
        method = "DELETE" if path == "/api/delete" else "POST"
        assert server.request(method, path, {"model": "gpt-4o"}, **KEY)[0] == 404
