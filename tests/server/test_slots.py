"""Slots: states are saved, restored and erased by name, as in llama-server."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rwkv_gpu.server.catalogue import ServedModel
from tests.server.gate import gate, until
from tests.server.serving import LLAMA, MODEL, serving

PROMPT = "The sea is wide. The owl and the fox went to the sea in a small boat. " * 2
ASK = {"prompt": PROMPT, "n_predict": 4, "temperature": 0}


def computed(server, **more):
    """Returns the number of prompt tokens that a request computes, and its answer."""
    found = server.post("/completion", {**ASK, **more})
    return found["timings"]["prompt_n"], found["content"], found["id_slot"]


def action(server, slot, name, **body):
    return server.post(f"/slots/{slot}?action={name}", body)


@pytest.mark.parametrize("path", [MODEL, LLAMA])
def test_a_saved_slot_is_restored_by_another_server(tmp_path, path):
    model = ServedModel("a", str(path))
    with serving(model, slot_save_path=str(tmp_path)) as server:
        prompt, answer, slot = computed(server, id_slot=1)
        assert slot == 1
        saved = action(server, 1, "save", filename="one.bin")
        assert saved["n_saved"] >= prompt and saved["n_written"] > 1000 and saved["timings"]["save_ms"] >= 0
        assert (saved["id_slot"], saved["filename"]) == (1, "one.bin")
        few = computed(server, id_slot=1)
        assert few[0] < prompt and few[1] == answer
        assert action(server, 1, "erase")["n_erased"] >= saved["n_saved"]
        assert computed(server, id_slot=1)[0] == prompt
    with serving(model, slot_save_path=str(tmp_path)) as server:
        restored = action(server, 0, "restore", filename="one.bin")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        fewer = computed(server, id_slot=0, prompt=PROMPT + answer + " and")
        assert fewer[0] < 16
        assert action(server, 0, "save", filename="two.bin")["n_saved"] > restored["n_restored"]


def test_wrong_requests_and_damaged_files_are_refused(tmp_path):
    with serving(ServedModel("a", str(MODEL)), slot_save_path=str(tmp_path)) as server:
        computed(server, id_slot=0)
        action(server, 0, "save", filename="one")

        def refused(query, body, status=400):
            found = server.request("POST", f"/slots/{query}", body)
            assert found[0] == status, found
            return found[2]["error"]["message"]

        for name in ("", "../a", "a/b", "a\\b", ".", "..", ".key", "a\0", "a" * 300, "con:", "a ", None, 5, ["a"]):
            assert "filename" in refused("0?action=save", {"filename": name})
            assert "filename" in refused("0?action=restore", {"filename": name})
        for query in ("0", "0?action=delete", "0?action=", "x?action=save", "-1?action=save", "1e3?action=save"):
            assert refused(query, {"filename": "a"})
        assert "is empty" in refused("1?action=save", {"filename": "a"})
        assert "does not exist" in refused("0?action=restore", {"filename": "other"})
        for slot in ("a", -2, 1.5, True):
            assert server.request("POST", "/completion", {**ASK, "id_slot": slot})[0] == 400
        [file] = tmp_path.glob("*.state")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        assert "is damaged" in refused("0?action=restore", {"filename": "one"})
        file.write_bytes(b"")
        assert "is damaged" in refused("0?action=restore", {"filename": "one"})
    with serving(ServedModel("a", str(LLAMA)), slot_save_path=str(tmp_path / "other")) as server:
        computed(server, id_slot=0)
        action(server, 0, "save", filename="one")
    with serving(ServedModel("a", str(MODEL)), slot_save_path=str(tmp_path / "other")) as server:
        assert "another model" in refused("0?action=restore", {"filename": "one"})
    with serving() as server:
        assert "--slot-save-path" in refused("0?action=save", {"filename": "a"}, 501)


def test_slots_of_other_keys_are_neither_saved_nor_found(tmp_path):
    keys = {name: {"authorization": f"Bearer key-of-{name}-12345"} for name in "ab"}
    given = tuple(f"key-of-{name}-12345" for name in keys)
    with serving(ServedModel("a", str(MODEL)), slot_save_path=str(tmp_path), api_keys=given) as server:
        server.post("/completion", {**ASK, "id_slot": 0}, **keys["a"])
        for name in ("save", "erase"):
            assert server.request("POST", f"/slots/0?action={name}", {"filename": "f"}, **keys["b"])[0] == 403
        server.post("/slots/0?action=save", {"filename": "f"}, **keys["a"])
        status, _, found = server.request("POST", "/slots/1?action=restore", {"filename": "f"}, **keys["b"])
        assert status == 400 and "does not exist" in found["error"]["message"]
        assert server.post("/slots/1?action=restore", {"filename": "f"}, **keys["a"])["n_restored"]


def test_a_slot_in_use_is_left_alone_and_requests_without_one_get_an_idle_one(tmp_path):
    with serving(ServedModel("a", str(MODEL)), slot_save_path=str(tmp_path)) as server:
        with gate(server) as held, ThreadPoolExecutor() as threads:
            first = threads.submit(computed, server, id_slot=0)
            until(lambda: server.engine.busy)
            assert server.request("POST", "/slots/0?action=erase", {})[0] == 409
            second = threads.submit(computed, server)
            until(lambda: len(server.service.running) == 2)
            held.open = True
            assert (first.result()[2], second.result()[2]) == (0, 1)
        assert server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
        assert server.request("POST", "/slots/0?action=erase", None)[0] == 200, "llama-server's clients send no body"
