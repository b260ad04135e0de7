"""Files and batches over HTTP, by the APIs of OpenAI and Anthropic."""

import asyncio
import json

import pytest

from rwkv_gpu.server import batch_jobs, stored_files
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.multipart import Upload, parse_form
from rwkv_gpu.server.queue import Queue
from tests.process import until
from tests.server.serving import serving

TYPE = "multipart/form-data; boundary=XX"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
CREATE = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
FILE = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
ALICE, BOB = {"authorization": "Bearer alice"}, {"authorization": "Bearer bob"}


def form(content, purpose=b"batch"):
    return (
        b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
        + purpose
        + b"\r\n"
        + FILE
        + content
        + b"\r\n--XX--\r\n"
    )


def line(id, body, url="/v1/chat/completions"):
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def uploaded(server, content, **headers):
    return server.post("/v1/files", form(content), content_type=TYPE, **headers)["id"]


def ended(server, path, **headers):
    until(
        lambda: (
            server.get(path, **headers).get("ended_at")
            or server.get(path, **headers).get("status") in ("completed", "cancelled")
        )
    )
    return server.get(path, **headers)


def lines_in(server, id):
    return {one["custom_id"]: one for one in map(json.loads, server.get(f"/v1/files/{id}/content").splitlines())}


def test_a_batch_answers_each_line_as_its_route_does(server):
    file = uploaded(
        server, line("good", CHAT) + line("bad", {**CHAT, "n": 0}) + line("stream", {**CHAT, "stream": True})
    )
    batch = server.post("/v1/batches", {**CREATE, "input_file_id": file, "metadata": {"a": "b"}})
    found = ended(server, f"/v1/batches/{batch['id']}")
    assert (found["status"], found["metadata"]) == ("completed", {"a": "b"})
    assert found["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    [good] = lines_in(server, found["output_file_id"]).values()
    assert good["response"]["body"]["choices"] == server.post("/v1/chat/completions", CHAT)["choices"]
    bad = lines_in(server, found["error_file_id"])
    assert {id: one["response"]["status_code"] for id, one in bad.items()} == {"bad": 400, "stream": 400}
    assert batch["id"] in [one["id"] for one in server.get("/v1/batches")["data"]]
    listed = server.get("/v1/files?limit=1")
    assert listed["has_more"] and server.get(f"/v1/files?after={listed['last_id']}")["data"]
    for limit in ("0", "-1", "101", "1.5", "x", "1" + "0" * 9, "0" * 8 + "1" + "0" * 5000, "%00", "%D9%A3", "%C2%B2"):
        assert server.request("GET", f"/v1/files?limit={limit}")[0] == 400, limit
    assert server.request("DELETE", f"/v1/files/{file}")[2]["deleted"]
    assert server.request("GET", f"/v1/files/{file}")[0] == 404


def test_a_batch_of_messages_answers_as_messages_do(server):
    requests = [{"custom_id": "a", "params": CHAT}, {"custom_id": "b", "params": {**CHAT, "messages": 3}}]
    batch = server.post("/v1/messages/batches", {"requests": requests})
    found = ended(server, f"/v1/messages/batches/{batch['id']}")
    assert found["processing_status"] == "ended"
    assert found["request_counts"] == {"processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0}
    results = {
        one["custom_id"]: one["result"] for one in map(json.loads, server.get(found["results_url"]).splitlines())
    }
    assert results["a"]["message"]["content"] == server.post("/v1/messages", CHAT)["content"]
    assert results["b"]["error"]["error"]["type"] == "invalid_request_error"
    assert server.request("DELETE", f"/v1/messages/batches/{batch['id']}")[0] == 200
    assert server.request("GET", found["results_url"])[0] == 404


def test_bad_lines_refuse_the_batch(server):
    for content in (
        b"",
        b"{",
        line("a", CHAT) * 2,
        line("a", CHAT, "/v1/completions"),
        line("", CHAT),
        line("a", 3),
        b"[1]",
    ):
        file = uploaded(server, content)
        status, _, answer = server.request("POST", "/v1/batches", {**CREATE, "input_file_id": file})
        assert (status, bool(answer["error"]["message"])) == (400, True), content


def test_keys_see_their_own_batches_and_cancelling_ends_running_lines():
    with serving(api_keys=("alice", "bob")) as server:
        file = uploaded(
            server,
            b"".join(line(str(one), {**CHAT, "max_tokens": 100_000, "ignore_eos": True}) for one in range(9)),
            **ALICE,
        )
        body = {**CREATE, "input_file_id": file}
        assert server.request("POST", "/v1/batches", body, **BOB)[0] == 400
        path = f"/v1/batches/{server.post('/v1/batches', body, **ALICE)['id']}"
        for method, one in [
            ("GET", path),
            ("POST", path + "/cancel"),
            ("GET", f"/v1/files/{file}/content"),
            ("DELETE", f"/v1/files/{file}"),
        ]:
            assert server.request(method, one, **BOB)[0] == 404
        assert not server.get("/v1/files", **BOB)["data"] and not server.get("/v1/batches", **BOB)["data"]
        until(lambda: server.service.running)
        assert server.post(path + "/cancel", None, **ALICE)["status"] == "cancelling"
        found = ended(server, path, **ALICE)
        assert (found["status"], found["output_file_id"]) == ("cancelled", None)
        assert not server.service.running
        assert server.request("POST", path + "/cancel", **ALICE)[0] == 409
        server.post("/v1/batches", body, **ALICE)  # it runs while the server is shut down
        until(lambda: server.service.running)


def test_unfinished_batches_expire_and_full_files_fail_the_batch(server, monkeypatch):
    file = uploaded(server, line("a", {**CHAT, "max_tokens": 100_000, "ignore_eos": True}))
    with monkeypatch.context() as patched:
        patched.setattr(batch_jobs, "WINDOW", 0.0)
        late = server.post("/v1/batches", {**CREATE, "input_file_id": file})["id"]
    until(lambda: server.get(f"/v1/batches/{late}")["expired_at"])
    found = server.get(f"/v1/batches/{late}")
    assert found["status"] == "expired" and found["request_counts"]["failed"] == 1
    assert lines_in(server, found["error_file_id"])["a"]["error"]["code"] == "batch_expired"
    file = uploaded(server, line("a", CHAT))
    with monkeypatch.context() as patched:
        patched.setattr(stored_files, "MAX_BYTES", sum(one.nbytes for one in server.service.files._found.values()))
        full = server.post("/v1/batches", {**CREATE, "input_file_id": file})["id"]
        until(lambda: server.get(f"/v1/batches/{full}")["failed_at"])
    found = server.get(f"/v1/batches/{full}")
    assert (found["status"], found["errors"]["data"][0]["code"]) == ("failed", "no_room")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", b"--XX", b"--XX--", form(b"x")[:-8], form(b"x")[:-4], form(b"x") + b"more", b"pre" + form(b"x"),
        FILE + b"a\r\n" + FILE + b"b\r\n--XX--", b"--XX\r\nA: " + b"b" * 5000 + b"\r\n\r\n\r\n--XX--",
        b"--XX\r\n\r\nx\r\n--XX--", b'--XX\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n--XX--',
        b"".join(b'--XX\r\nContent-Disposition: form-data; name="%d"\r\n\r\n\r\n' % one for one in range(40))
        + b"--XX--",
    ],
)  # fmt: skip
def test_hostile_forms_are_refused(server, body):
    assert server.request("POST", "/v1/files", body, content_type=TYPE)[0] == 400


def test_forms_without_a_boundary_are_refused(server):
    for kind in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'x' * 71}",
        "text/plain",
    ):
        assert server.request("POST", "/v1/files", form(b"x"), content_type=kind)[0] == 415


def test_files_keep_every_byte():
    content = bytes(range(256)) + b"\r\n--X\r\n--"
    assert parse_form(form(content), TYPE.encode()) == {"purpose": "batch", "file": Upload("a.jsonl", content)}


def test_files_are_bounded_and_expire(monkeypatch):
    monkeypatch.setattr(stored_files, "MAX_BYTES", 10)
    now = [0.0]
    files = stored_files.StoredFiles(lambda: now[0])
    first = files.add(stored_files.File(b"a", "x", "batch", created=0.0), b"12345678")
    with pytest.raises(ApiError, match="delete some"):
        files.add(stored_files.File(b"a", "y", "batch", created=0.0), b"123")
    files.add(stored_files.File(b"b", "z", "batch", created=0.0), b"123")
    assert files.listed(b"a") == [first]
    now[0] = stored_files.KEPT + 1
    assert not files.listed(b"a")


async def busy_queue():
    queue = Queue(1, 1, 1000)
    running = queue.enter()
    await queue.wait(running, 1, 1)
    return queue, running


def test_lines_of_batches_wait_for_other_requests():
    async def order():
        queue, running = await busy_queue()
        line, other = queue.enter(background=True), queue.enter()
        waits = [asyncio.create_task(queue.wait(line, 1, 1)), asyncio.create_task(queue.wait(other, 900, 1))]
        await asyncio.sleep(0)
        queue.leave(running)
        await waits[1]
        assert not waits[0].done()
        queue.leave(other)
        await waits[0]

    asyncio.run(order())
