"""SIGTERM of a server with a store: the states of running conversations are written before it ends."""

import json
import threading
from dataclasses import replace
from typing import Any

import rwkv_gpu
from rwkv_gpu.server.catalogue import Catalogue, ServedModel
from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.run import Runner, listen
from rwkv_gpu.server.service import Service
from rwkv_gpu.stores import MemoryStore, StoreDown
from tests.process import PATIENCE
from tests.server.serving import MODEL, Served

KEY = b"a key that nobody guesses"
QUESTION = [{"role": "user", "content": "Tell me all that you know about foxes and owls, in many words. " * 6}]
SCHEMA = {"type": "array", "items": {"enum": ["fox", "owl"]}, "minItems": 100_000}
LONG = {"stream": True, "response_format": {"type": "json_schema", "json_schema": {"name": "long", "schema": SCHEMA}}}


class DownAtFirst(MemoryStore):
    """A store that is unavailable until a test enables it."""

    down = True

    def get(self, keys):
        if self.down:
            raise StoreDown("no")
        return super().get(keys)

    def put(self, key, value):
        if self.down:
            raise StoreDown("no")
        super().put(key, value)


def opened(store: MemoryStore, **more: Any) -> rwkv_gpu.LLM:
    return rwkv_gpu.load(MODEL, device="cpu", sequences=8, chunk_size=64, store=store, store_key=KEY, **more)


def test_a_drained_server_leaves_all_its_conversations_in_the_store():
    """One chat ended while the store was unavailable, and another is still running when the time to drain is over."""
    store = DownAtFirst()
    config = replace(ServerConfig(port=0, sequences=8), drain=2.0)
    catalogue = Catalogue([ServedModel("quiet", str(MODEL))], lambda _, progress: opened(store, progress=progress))
    runner, listener, ready = Runner(Service(config, catalogue)), listen("127.0.0.1", 0), threading.Event()
    thread = threading.Thread(target=runner.run, args=(listener, ready.set))
    thread.start()
    assert ready.wait(PATIENCE)
    served = Served(runner, listener.getsockname()[1])
    ended = [{"role": "user", "content": "Another talk, about bears and their long winters in the woods. " * 6}]
    assert served.request("POST", "/v1/chat/completions", {"messages": ended, "max_tokens": 4})[0] == 200
    connection = served.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": QUESTION, **LONG}))
    response = connection.getresponse()
    response.read(200)
    store.down = False
    runner.signal()
    assert b"shutting_down" in response.read()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    connection.close()
    with opened(store) as llm:
        for messages in (QUESTION, ended):
            done = llm.create_chat_completion(messages, max_tokens=2)
            assert done["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
