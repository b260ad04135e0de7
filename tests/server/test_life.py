"""The life of a request: it waits in a bounded queue, ends with its client, and can outlive its connection."""

import asyncio
import json
import socket
import threading

import pytest

from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.queue import Queue
from tests.process import PATIENCE
from tests.server.gate import gate, until
from tests.server.serving import Served, events, serving

LONG = {"prompt": "The sea", "max_tokens": 400, "temperature": 0, "stop_ids": [], "logit_bias": {"0": -1000}}
SHORT = {"prompt": "The sea", "max_tokens": 8, "temperature": 0}
MANY_TOKENS = "The sea is wide. " * 60


class Asked:
    """A request whose response is read when the test needs it."""

    def __init__(self, server: Served, body: dict, path: str = "/v1/completions", **headers: str) -> None:
        self.connection = server.connect()
        self.connection.request("POST", path, json.dumps(body), headers)
        self.response = None

    def begin(self):
        self.response = self.connection.getresponse()
        return self.response

    def read(self) -> bytes:
        content = (self.response or self.begin()).read()
        self.leave()
        return content

    def leave(self) -> None:
        if self.response is not None:
            self.response.close()
        self.connection.close()


def text_of(content: bytes) -> str:
    return "".join(choice["text"] for one in events(content)[:-1] for choice in one["choices"])


def waiting(server: Served) -> int:
    queues = server.service._queues
    return sum(queue.waiting for queue in queues.values())


def busy(server: Served) -> int:
    return len(server.engine._slots.sequences)


def idle(server: Served) -> bool:
    queues = server.service._queues.values()
    return not (server.service._calls or busy(server) or any(queue.running for queue in queues))


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        pytest.param({**LONG, "prompt": MANY_TOKENS, "stream": True}, 1, id="prefilling"),
        pytest.param({**LONG, "stream": True}, 5, id="decoding"),
        pytest.param({**LONG, "n": 2, "temperature": 1, "stream": True}, 5, id="n > 1"),
        pytest.param(LONG, 5, id="not streamed"),
    ],
)
def test_a_client_that_leaves_frees_its_memory_within_two_steps(server, body, steps):
    undisturbed = text_of(Asked(server, {**SHORT, "stream": True}).read())
    until(lambda: idle(server))
    with gate(server) as held:
        leaving = Asked(server, body)
        until(lambda: server.service._calls and server.engine.busy)
        held.allow(steps)
        bystander = Asked(server, {**SHORT, "stream": True}) if body.get("n", 1) == 1 else None
        until(lambda: len(server.service._calls) == (1 if bystander is None else 2))
        leaving.leave()
        until(lambda: len(server.service._calls) == (0 if bystander is None else 1))
        held.allow(2)
        assert busy(server) <= (bystander is not None)
        held.open = True
        if bystander is not None:
            assert text_of(bystander.read()) == undisturbed
    until(lambda: idle(server))


def test_a_client_that_leaves_without_waiting_for_its_first_answer_frees_all(server):
    """The client sent several requests on one connection. The first is answered, the others are not started."""
    body = json.dumps(LONG).encode()
    one = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with gate(server) as held:
        with socket.create_connection(("127.0.0.1", server.port)) as leaving:
            leaving.sendall(3 * one)
            until(lambda: server.service._calls and server.engine.busy)
            held.allow(3)
        until(lambda: not server.service._calls)
        held.allow(2)
        assert busy(server) == 0
    until(lambda: idle(server))


def test_the_request_of_a_client_that_leaves_while_it_waits_never_reaches_the_engine(server):
    with gate(server) as held:
        first = [Asked(server, {**SHORT, "stream": True}) for _ in range(3)]
        until(lambda: len(server.service._calls) == 3)
        leaving = Asked(server, LONG)
        until(lambda: waiting(server) == 1)
        leaving.leave()
        until(lambda: waiting(server) == 0)
        held.open = True
        assert len({text_of(one.read()) for one in first}) == 1
    until(lambda: idle(server))


def test_a_full_queue_refuses_at_once_with_a_time_to_retry():
    with serving(max_queue=1) as server:
        with gate(server) as held:
            asked = [Asked(server, SHORT) for _ in range(4)]
            until(lambda: waiting(server) == 1)
            for _ in range(5):  # while the gate is closed, so no request waits for a step
                status, headers, answer = server.request("POST", "/v1/completions", SHORT)
                assert status == 429
                assert int(headers["retry-after"]) >= 1
                assert answer["error"]["code"] == "queue_full"
            held.open = True
            assert len({json.loads(one.read())["choices"][0]["text"] for one in asked}) == 1
        until(lambda: idle(server))
        assert server.request("POST", "/v1/completions", SHORT)[0] == 200


def test_a_request_that_takes_too_long_ends_with_an_error():
    with serving(timeout=0.3) as server:
        with gate(server):
            status, _, answer = server.request("POST", "/v1/completions", LONG)
            assert status == 504
            assert answer["error"]["code"] == "timeout"
        until(lambda: idle(server))
    with serving() as server, gate(server) as held:
        held.let(2)
        stream = Asked(server, {**LONG, "stream": True, "timeout": 0.5})
        *_, error, done = events(stream.read())
        assert error["error"]["code"] == "timeout"
        assert done == "[DONE]"


# ------------------------------------------------------------ the queue alone


def in_order(arrivals, slots=1):
    """Returns request names in the order in which they get slots. An arrival is (name, tokens, seconds waited)."""

    async def run():
        queue = Queue(slots, 100, 1 << 30)
        first = queue.enter()
        await queue.wait(first, 1, slots)
        order, tasks = [], []

        async def one(name, tokens, waited):
            ticket = queue.enter()
            ticket.arrived -= waited
            await queue.wait(ticket, tokens, 1)
            order.append(name)
            queue.leave(ticket)

        for arrival in arrivals:
            tasks.append(asyncio.create_task(one(*arrival)))
            await asyncio.sleep(0)
        queue.leave(first)
        await asyncio.gather(*tasks)
        assert (queue.running, queue.waiting, queue.waiting_tokens) == (0, 0, 0)
        return order

    return asyncio.run(run())


def test_a_request_counts_once_for_each_of_its_answers():
    async def run():
        queue = Queue(4, 100, 1 << 30)
        three, two, many = (queue.enter() for _ in range(3))
        await queue.wait(three, 1, 3)
        assert queue.running == 3
        waits = asyncio.create_task(queue.wait(two, 1, 2))
        await asyncio.sleep(0)
        assert not waits.done()
        queue.leave(three)
        await waits
        assert queue.running == 2
        queue.leave(two)
        await queue.wait(many, 1, 9)  # more than exist: all of them
        assert queue.running == 4

    asyncio.run(run())


def test_short_prompts_overtake_long_ones():
    assert in_order([("long", 50_000, 0), ("short", 10, 0), ("shorter", 5, 0)])[-1] == "long"


def test_a_long_prompt_is_not_overtaken_for_ever():
    assert in_order([("short", 10, 0), ("long", 50_000, 60)])[0] == "long"


def test_requests_of_equal_rank_keep_their_order_of_arrival():
    assert in_order([(n, 10, 0) for n in range(9)]) == [*range(9)]


def test_prompt_tokens_that_wait_are_bounded():
    async def run():
        queue = Queue(1, 100, 1000)
        await queue.wait(queue.enter(), 1, 1)
        long = queue.enter()
        task = asyncio.create_task(queue.wait(long, 5000, 1))
        await asyncio.sleep(0)
        assert queue.waiting_tokens == 5000, "one that is alone may wait, however long"
        with pytest.raises(ApiError) as refused:
            queue.enter()
        assert refused.value.status == 429
        task.cancel()
        queue.leave(long)
        assert queue.waiting_tokens == 0

    asyncio.run(run())


# ------------------------------------------------------------ streams that can be resumed


def test_a_stream_continues_where_its_client_left_it():
    with serving() as server:
        whole = text_of(server.request("POST", "/v1/completions", {**SHORT, "stream": True})[2])
        with gate(server) as held:
            asked = Asked(server, {**SHORT, "stream": True, "resumable": True})
            response = asked.begin()
            held.allow(4)
            begun = response.read1()
            number = int(begun.decode().rsplit("id: ", 1)[1].split("\n")[0])
            asked.leave()
            held.open = True
            rest = server.request("GET", f"/v1/streams/{response.headers['x-stream-id']}", last_event_id=str(number))[2]
        assert text_of(begun + rest) == whole
        until(lambda: idle(server))


def test_a_stream_is_read_again_after_its_end_and_by_two_at_once():
    with serving() as server:
        with gate(server) as held:
            asked = Asked(server, {**SHORT, "stream": True, "resumable": True})
            response = asked.begin()
            path = f"/v1/streams/{response.headers['x-stream-id']}"
            found = []
            second = threading.Thread(target=lambda: found.append(server.get(path)))
            second.start()
            held.open = True
            first = asked.read()
            second.join(PATIENCE)
        assert found == [first]
        assert server.get(path) == first
        assert server.get(f"{path}?after=2") in first


def test_delete_stops_a_stream():
    with serving() as server:
        with gate(server) as held:
            asked = Asked(server, {**LONG, "stream": True, "resumable": True})
            response = asked.begin()
            held.allow(3)
            assert server.request("DELETE", f"/v1/streams/{response.headers['x-stream-id']}")[0] == 200
            held.open = True
            *_, last, done = events(asked.read())
        assert last["choices"][0]["finish_reason"] == "stop"
        assert done == "[DONE]"
        until(lambda: idle(server))


def test_the_stream_of_another_key_is_not_found():
    with serving(api_keys=("a" * 9, "b" * 9)) as server:
        keys = [{"authorization": f"Bearer {letter * 9}"} for letter in "ab"]
        asked = Asked(server, {**SHORT, "stream": True, "resumable": True}, **keys[0])
        path = f"/v1/streams/{asked.begin().headers['x-stream-id']}"
        asked.read()
        assert server.request("GET", path, **keys[0])[0] == 200
        assert server.request("GET", path, **keys[1])[0] == 404
        assert server.request("DELETE", path, **keys[1])[0] == 404
        assert server.request("GET", path)[0] == 401
        assert server.request("GET", "/v1/streams/strm_0", **keys[0])[0] == 404


def test_a_stream_without_a_reader_ends_after_a_while(monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.streams.PATIENCE", 0.1)
    with serving() as server:
        with gate(server) as held:
            asked = Asked(server, {**LONG, "stream": True, "resumable": True})
            asked.begin()
            asked.leave()
            until(lambda: not len(server.service.streams))
            held.allow(2)
            assert busy(server) == 0
        until(lambda: idle(server))


def test_a_stream_keeps_a_limited_number_of_bytes(monkeypatch):
    monkeypatch.setattr("rwkv_gpu.server.streams.MAX_BYTES", 400)
    with serving() as server:
        asked = Asked(server, {**SHORT, "stream": True, "resumable": True})
        response = asked.begin()
        asked.read()
        *_, error, _ = events(server.get(f"/v1/streams/{response.headers['x-stream-id']}"))
        assert error["error"]["code"] == "stream_gone"
