"""The server's caches reveal nothing about the texts of a client to clients with other keys."""

import json
import threading
from contextlib import contextmanager
from functools import partial

import pytest

import rwkv_gpu
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.stores import MemoryStore
from tests.process import PATIENCE
from tests.server.gate import gate, until
from tests.server.serving import LLAMA, MODEL, serving

KEYS = ("key-of-a", "key-of-b")
A, B = ({"authorization": f"Bearer {key}"} for key in KEYS)
TEXT = "The sea is wide and deep, and a text that only one of us knows is written here. " * 9
SYSTEM = "You answer like the captain of an old ship, in short and friendly words. " * 3
QUESTION, LONGER = TEXT[:240], TEXT[:400]
SETTINGS = {"temperature": 0, "max_tokens": 2}
MODELS = [ServedModel("state", str(MODEL)), ServedModel("pages", str(LLAMA))]


def chat(*texts: str, system: str = "", **more):
    messages = [{"role": "system", "content": system}] * bool(system)
    messages += [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, **SETTINGS, **more}


def cached(server, body, key, path="/v1/chat/completions") -> int:
    """Returns the number of cached tokens of a prompt."""
    return server.post(path, body, **key)["usage"]["prompt_tokens_details"]["cached_tokens"]


def load_chat(path, progress, prompts=(), **more):
    llm = rwkv_gpu.load(path, device="cpu", sequences=2, chunk_size=64, tokens=1 << 14, progress=progress, **more)
    llm.__dict__["chat_format"] = llm.chat_format_of("chatml")  # not every file has a template
    llm.share_prompts(prompts)
    return llm


OLLAMA = {"stream": False, "options": {"num_predict": 2}}
GENERATING = {
    "/v1/chat/completions": chat("TEXT"),
    "/v1/completions": {"prompt": "TEXT", **SETTINGS},
    "/v1/responses": {"input": "TEXT", "max_output_tokens": 2},
    "/v1/messages": chat("TEXT"),
    "/api/chat": {"messages": chat("TEXT")["messages"], **OLLAMA},
    "/api/generate": {"prompt": "TEXT", **OLLAMA},
    "/completion": {"prompt": "TEXT", "n_predict": 2},
}


@contextmanager
def keyed(model, load=load_chat, **config):
    with serving(ServedModel(model.name, model.path), load=load, api_keys=KEYS, **config) as server:
        yield server


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request):
    return request.param


def test_a_key_shares_prefixes_with_itself_and_with_no_other(model):
    with keyed(model) as server:
        assert cached(server, chat(TEXT), A) == 0
        assert cached(server, chat(TEXT), A) > 100
        assert cached(server, chat(TEXT), B) == 0
        assert cached(server, chat(TEXT), B) > 100


def test_no_api_shares_a_text_with_another_key():
    with keyed(MODELS[1]) as server:
        tokens = server.service.metrics.tokens
        for number, (path, body) in enumerate(GENERATING.items()):
            counts = []
            for key in (A, A, B):
                before = tokens["pages", "cached"]
                server.post(path, json.loads(json.dumps(body).replace("TEXT", f"{number} {TEXT}")), **key)
                counts.append(tokens["pages", "cached"] - before)
            own, again, other = counts
            assert again > 100 > own >= other, path


def test_an_admin_key_shares_with_no_other(model):
    with serving(model, load=load_chat, admin_keys=("admin",)) as server:
        admin = {"authorization": "Bearer admin"}
        assert cached(server, chat(TEXT), admin) == 0
        assert cached(server, chat(TEXT), {}) == 0
        assert cached(server, chat(TEXT), admin) > 100


def test_keys_share_if_the_operator_allows_it_and_without_keys_all_share(model):
    with keyed(model, share_prefixes=True) as server:
        assert [cached(server, chat(TEXT), key) > 100 for key in (A, B)] == [False, True]
    with serving(model, load=load_chat) as server:
        assert [cached(server, chat(TEXT), key) > 100 for key in (A, B)] == [False, True]


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["keys", "no keys"])
def test_a_cache_salt_separates_requests_of_one_key(model, keys):
    with serving(model, load=load_chat, api_keys=keys) as server:
        for salt in ({}, {"cache_salt": "one"}, {"cache_salt": "two"}):
            assert [cached(server, chat(TEXT, **salt), A) > 100 for _ in range(2)] == [False, True]
        expected = not keys
        assert (cached(server, chat(TEXT, cache_salt="one"), B) > 100) is expected


def test_every_api_takes_a_cache_salt_and_refuses_a_wrong_one():
    with serving(MODELS[1], load=load_chat) as server:
        for path, body in {**GENERATING, "/v1/embeddings": {"input": "a"}}.items():
            status, headers, _ = server.request("POST", path, {**body, "cache_salt": "a salt"})
            assert status == 200 and "cache_salt" not in headers.get("x-ignored-fields", ""), path
            for wrong in ("", 3, ["a"], "x" * 257):
                status, _, reply = server.request("POST", path, {**body, "cache_salt": wrong})
                assert status == 400 and "cache_salt" in str(reply), path


@pytest.mark.parametrize(
    ("requests", "expected"), [([(A, 2)], (1, 1)), ([(A, 1), (A, 1)], (1, 1)), ([(A, 1), (B, 1)], (2, 0))],
    ids=["two answers", "one key", "two keys"],
)  # fmt: skip
def test_equal_prompts_wait_for_each_other_with_one_salt_only(model, requests, expected):
    with keyed(model) as server, gate(server) as held:
        slots, threads = server.engine._slots, []
        for key, n in requests:
            body = {"prompt": TEXT, "temperature": 0, "max_tokens": 2, "n": n}
            threads.append(threading.Thread(target=server.post, args=("/v1/completions", body), kwargs=key))
            threads[-1].start()
        until(lambda: len(server.llm._driver._numbers) == 2)
        held.allow(2)  # the first may have begun before the second request arrived
        assert (len(slots.running), len(slots.waiting)) == expected
        held.open = True
        for thread in threads:
            thread.join(PATIENCE)


def test_all_keys_share_a_named_prompt_and_nothing_else(model):
    with keyed(model, load=partial(load_chat, prompts=[SYSTEM.strip()])) as server:
        shared = max(map(len, server.llm._shared)) // 8
        other = chat(QUESTION, system="Else. " + SYSTEM)
        assert cached(server, other, A) == cached(server, other, B) == 0
        assert (
            cached(server, chat(QUESTION, system=SYSTEM.strip()), A) < 20
        )  # the beginning of its other system message
        assert cached(server, chat(QUESTION, system=SYSTEM.strip()), B) == shared > 100
        assert cached(server, chat("Other. " + QUESTION, system=SYSTEM), B) in range(shared, shared + 40)
        assert cached(server, chat(QUESTION, system=SYSTEM.strip()), A) > shared + 50


def test_token_counts_do_not_reveal_how_another_key_was_answered():
    """A conversation reuses the token ids of its answers. Another tokenisation may have fewer."""
    with keyed(MODELS[0]) as server:
        [whole], [other] = (server.llm.tokenize(text) for text in ("er", "q"))
        letters = chat("Hello", max_tokens=12, regex="(e[rq]){4}", logit_bias={str(whole): -100, str(other): -100})
        answer = server.post("/v1/chat/completions", letters, **A)["choices"][0]["message"]["content"]
        again = chat("Hello", answer, "So?")
        counts = [server.post("/v1/chat/completions", again, **key)["usage"]["prompt_tokens"] for key in (A, B)]
        assert counts[0] > counts[1]
        for path in ("/v1/chat/completions/input_tokens", "/v1/messages/count_tokens"):
            assert [server.post(path, again, **key)["input_tokens"] for key in (A, B)] == counts


def test_stored_states_are_found_by_their_own_key(model):
    """Another process with the same store continues the conversations of a key."""
    store = MemoryStore()

    def load(path, progress):
        llm = load_chat(path, progress, store=store, store_key=b"a key that nobody guesses")
        llm.states.rule.least = 30.0  # waits for a fetch: this model computes as fast as it fetches
        return llm

    with keyed(model, load=load) as server:
        answer = server.post("/v1/chat/completions", chat(LONGER), **A)["choices"][0]["message"]["content"]
    assert len(store)
    again = chat(LONGER, answer, "So?")
    with keyed(model, load=load) as server:
        assert cached(server, again, B) == 0
        assert cached(server, {**again, "cache_salt": "s"}, A) == 0
        assert cached(server, again, A) > 100
