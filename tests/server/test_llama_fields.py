"""Fields of llama-server, vLLM and Ollama that change the answer, and fields that their clients read."""

import json
import threading

import pytest

from rwkv_gpu.server import call
from rwkv_gpu.server.call import dumps, dumps_apart
from rwkv_gpu.server.catalogue import ServedModel
from tests.server.serving import LLAMA, serving

TEXT = "The sea is wide and deep. " * 12
ASK = {"prompt": TEXT, "n_predict": 4, "temperature": 0}


@pytest.fixture(scope="module")
def llama():
    with serving(ServedModel("llama", str(LLAMA), ("other",))) as served:
        yield served


def ends(server):
    return sorted(server.llm.tokenizer.stop_ids)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_end_tokens_that_are_ignored_or_too_early_are_not_sampled(server, path):
    """The bias makes each answer end at once."""
    asked = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    ids = sorted(server.llm.tokenizer.stop_ids | server.llm.chat_format.stop_ids)
    asked |= {"max_tokens": 8, "temperature": 0, "logit_bias": {str(token): 900 for token in ids}}

    def tokens(**more):
        reply = server.post(path, {**asked, **more})
        return reply["tokens_predicted"] if "tokens_predicted" in reply else reply["usage"]["completion_tokens"]

    assert tokens() == 0
    assert tokens(min_tokens=5) == 5
    assert tokens(ignore_eos=True) == 8
    for more in ({"min_tokens": 5}, {"ignore_eos": True}):
        status, _, reply = server.request("POST", path, {**asked, **more, "regex": "a"})
        assert status == 400 and next(iter(more)) in reply["error"]["message"]
    for more in ({"min_tokens": -1}, {"ignore_eos": 1}, {"min_tokens": "a"}, {"cache_prompt": 1}):
        assert server.request("POST", path, {**asked, **more})[0] == 400


@pytest.mark.parametrize("which", ["server", "llama"])
def test_a_prompt_without_cache_finds_and_leaves_nothing(request, which):
    served = request.getfixturevalue(which)
    body = {"prompt": f"{which} {TEXT}", "max_tokens": 2, "temperature": 0}

    def cached(**more):
        used = served.post("/v1/completions", {**body, **more})["usage"]
        return used["prompt_tokens_details"]["cached_tokens"]

    before = served.llm.activity.prefixes
    assert cached(cache_prompt=False) == cached(cache_prompt=False, n=2) == 0
    assert served.llm.activity.prefixes == before
    if which == "llama":  # a model whose file has no template
        assert cached() == 0 < cached() and cached(cache_prompt=False) == 0
        return
    chat = {"messages": [{"role": "user", "content": body["prompt"]}], "max_tokens": 2, "temperature": 0}
    for more in ({"cache_prompt": False}, {"cache_prompt": False}, {}, {"cache_prompt": False}):
        used = served.post("/v1/chat/completions", {**chat, **more})["usage"]["prompt_tokens_details"]
        assert used["cached_tokens"] < 10
    assert served.post("/v1/chat/completions", chat)["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_settings_of_an_answer_list_biases_and_ignored_ends(llama):
    def biases(**more):
        return llama.post("/completion", {"prompt": "hello", "n_predict": 1, **more})["generation_settings"][
            "logit_bias"
        ]

    assert biases() == []
    given = biases(logit_bias=[[5, 1.5], [6, False]])
    assert given == [{"token": 5, "bias": 1.5}, {"token": 6, "bias": None}]
    ends = biases(ignore_eos=True)
    assert ends and {one["bias"] for one in ends} == {None}


def test_prompts_may_mix_texts_and_ids(llama):
    def ids(text):
        return llama.llm.tokenize(text)

    bos = [llama.llm.tokenizer.bos] if llama.llm.tokenizer.add_bos else []
    mixed, several = [*ids("hello"), " world", 70], ["hello", *ids(" world"), "a"]
    asked = {"n_predict": 2, "temperature": 0}
    for given, plain in [
        (mixed, [*ids("hello"), *ids(" world"), 70]),
        (several, [*bos, *ids("hello"), *ids(" world"), *ids("a")]),
    ]:
        one, other = (llama.post("/completion", {**asked, "prompt": prompt}) for prompt in (given, plain))
        assert (one["content"], one["tokens_evaluated"]) == (other["content"], len(plain))
        both = llama.post("/v1/completions", {"prompt": [given, "b"], "max_tokens": 1})
        assert len(both["choices"]) == 2
    assert llama.request("POST", "/completion", {**asked, "prompt": ["a", 5, 1.5]})[0] == 400
    assert llama.request("POST", "/completion", {**asked, "prompt": ["a", 1 << 40]})[0] == 400


def test_a_response_has_the_fields_that_were_named(llama):
    names = ["content", "generation_settings/temperature", "timings/prompt_n", "nothing", "content/x"]
    found = llama.post("/completion", {**ASK, "response_fields": names})
    assert found.keys() == {*names[:3]} and found["generation_settings/temperature"] == 0
    assert llama.request("POST", "/completion", {**ASK, "response_fields": "content"})[0] == 400


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_after_sampling_equal_those_of_the_tokens_that_were_kept(llama, stream):
    asked = {**ASK, "temperature": 1.0, "seed": 3, "n_probs": 5, "post_sampling_probs": True, "stream": stream}
    for more, count, least in [({"top_k": 3}, 3, 0.99), ({"temperature": 0}, 1, 1.0), ({"top_k": 0}, 5, 0.0)]:
        if stream:
            found = llama.stream("/completion", {**asked, **more})
            tokens = [one for event in found for one in event.get("completion_probabilities", [])]
            assert all(len(event["completion_probabilities"]) == 1 for event in found if not event.get("stop"))
        else:
            tokens = llama.post("/completion", {**asked, **more})["completion_probabilities"]
        assert len(tokens) == 4
        for one in tokens:
            probs = [other["prob"] for other in one["top_probs"]]
            assert len(probs) == count and least <= sum(probs) < 1.001 and probs == sorted(probs, reverse=True)
            assert 0 < one["prob"] <= probs[0] + 1e-9
    assert llama.request("POST", "/completion", {**asked, "post_sampling_probs": 1})[0] == 400


def test_probabilities_after_sampling_are_drawn_as_before(llama):
    asked = {**ASK, "temperature": 1.0, "seed": 3, "top_k": 9, "n_probs": 2}
    contents = {llama.post("/completion", {**asked, "post_sampling_probs": on})["content"] for on in (False, True)}
    assert len(contents) == 1


def test_a_prompt_that_is_too_long_is_refused_with_its_length(llama):
    for path, body in [("/completion", {"prompt": TEXT * 20}), ("/v1/completions", {"prompt": [5] * 2000})]:
        status, _, reply = llama.request("POST", path, body)
        error = reply["error"]
        assert (status, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", llama.llm.context)
        assert error["n_prompt_tokens"] > error["n_ctx"]


def test_a_bias_of_a_very_long_text_is_refused_before_it_is_tokenised(llama):
    for text, status in (("a" * 1024, 200), ("a" * 1025, 400)):
        body = {"prompt": "a", "n_predict": 1, "logit_bias": [[text, 1.0]]}
        assert llama.request("POST", "/completion", body)[0] == status


def test_large_responses_are_converted_on_a_thread_to_the_same_json(llama, monkeypatch):
    """While json converts a list of a million entries, no other thread runs, and no other client is answered."""
    threads = []

    def apart(value):
        threads.append(threading.current_thread())
        return dumps_apart(value)

    monkeypatch.setattr(call, "dumps_apart", apart)
    pieces = llama.post("/tokenize", {"content": "a b", "with_pieces": True})["tokens"]
    assert [one["id"] for one in pieces] == llama.post("/tokenize", {"content": "a b"})["tokens"]
    assert len(llama.post("/v1/embeddings", {"input": ["a", "b"]})["data"]) == 2
    assert len(llama.post("/api/embed", {"model": "llama", "input": ["a", "b"]})["embeddings"]) == 2
    assert len(llama.post("/embedding", {"content": ["a", "b"]})) == 2
    loop = llama.on_loop(threading.current_thread)
    assert len(threads) >= 4 and loop not in threads
    value = {"a": [{"b": [1.5, None]}, [], {}], "\ud800": "\ud800", "c": [], "d": [[1, 2], 3], "e": {}}
    assert dumps_apart(value) == dumps(value)


def test_answers_have_a_fingerprint_and_timings(server):
    for path, asked in [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ]:
        body = {**asked, "max_tokens": 4, "temperature": 0}
        whole, chunks = server.post(path, body), server.stream(path, body)
        assert whole["system_fingerprint"] == chunks[0]["system_fingerprint"]
        for timings in (whole["timings"], chunks[-2]["timings"]):
            assert timings["predicted_n"] == whole["usage"]["completion_tokens"]
            assert all(value >= 0 for value in timings.values())


def test_props_and_models_have_the_names_of_llama_server(llama):
    props = llama.get("/props")
    assert props["model_path"] == str(LLAMA) and props["aliases"] == ["other"]
    params = props["default_generation_settings"]["params"]
    assert {"temperature", "top_k", "min_p", "n_predict", "seed", "repeat_penalty", "stop"} <= params.keys()
    assert llama.get("/v1/models")["data"][0]["aliases"] == ["other"]


LLAMA_METRICS = [
    "prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total",
    "tokens_predicted_seconds_total", "n_decode_total", "n_tokens_max", "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total", "prompt_tokens_seconds",
    "predicted_tokens_seconds", "requests_processing", "requests_deferred", "n_busy_slots_per_decode",
]  # fmt: skip


def test_metrics_have_the_names_of_llama_server():
    with serving(ServedModel("llama", str(LLAMA))) as llama:
        replies = [llama.post("/completion", ASK)["timings"] for _ in range(2)]
        status, headers, text = llama.request("GET", "/metrics")
        found = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line.startswith("llamacpp:"))
        value = {name: float(found[f"llamacpp:{name}"]) for name in LLAMA_METRICS}
    assert status == 200 and headers["Process-Start-Time-Unix"].isdecimal()
    assert value["prompt_tokens_total"] == sum(one["prompt_n"] for one in replies)
    assert value["prompt_tokens_cached_total"] == sum(one["cache_n"] for one in replies) > 0
    assert value["tokens_predicted_total"] == sum(one["predicted_n"] for one in replies)
    assert value["n_decode_total"] > 0 and value["n_tokens_max"] > 100 and value["requests_processing"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_answers_with_log_probabilities(server, stream):
    asked = {"options": {"num_predict": 4, "temperature": 0}, "logprobs": True, "top_logprobs": 2, "stream": stream}
    for path, body in [
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
        ("/api/generate", {"prompt": "a"}),
    ]:
        status, _, content = server.request("POST", path, {**body, **asked})
        assert status == 200
        lines = [content] if not stream else [json.loads(line) for line in content.splitlines()]
        tokens = [token for line in lines for token in line.get("logprobs", [])]
        assert len(tokens) == lines[-1]["eval_count"] > 0
        assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 for one in tokens)
        for wrong in ({"logprobs": 1}, {"top_logprobs": 99}, {"logprobs": False}):
            assert server.request("POST", path, {**body, **asked, **wrong})[0] == 400


def test_prompts_may_be_objects_with_a_text(server):
    ask = {"n_predict": 3, "temperature": 0}
    plain = server.post("/completion", {**ask, "prompt": "The sea"})["content"]
    told = {"prompt_string": "The sea"}
    assert server.post("/completion", {**ask, "prompt": told})["content"] == plain
    each = server.post("/completion", {**ask, "prompt": ["The sea", {**told, "multimodal_data": []}]})
    assert [one["content"] for one in each] == [plain, plain]
    for wrong in ({}, {"prompt_string": 1}, {**told, "multimodal_data": ["aGk="]}, [{"a": 1}]):
        assert server.request("POST", "/completion", {**ask, "prompt": wrong})[0] == 400, wrong


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_repeats_its_prompt(llama, stream):
    asked = {
        **ASK,
        "prompt": ["the sea", *llama.post("/tokenize", {"content": " and sky"})["tokens"]],
        "stream": stream,
    }
    found = llama.stream("/completion", asked)[-1] if stream else llama.post("/completion", asked)
    assert "sea" in found["prompt"] and found["prompt"].endswith("sky")
