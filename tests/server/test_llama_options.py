"""Options of llama-server and vLLM in requests: each works, is refused in a sentence, or is named as ignored."""

import json
import time
from dataclasses import replace

import pytest

from rwkv_gpu.llm.completion import Event
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.code_bounds import Bounds
from rwkv_gpu.server.run import listen_on
from tests.golden_files import golden
from tests.server.serving import LLAMA, serving

TEXT = " ".join(["The sea is wide and deep."] * 12)
HI = [{"role": "user", "content": TEXT}]
BODIES = {
    "/completion": {"prompt": TEXT, "n_predict": 4, "ignore_eos": True},
    "/v1/completions": {"prompt": TEXT, "max_tokens": 4, "ignore_eos": True},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 4, "ignore_eos": True},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 4, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def llama():
    with serving(ServedModel("llama", str(LLAMA))) as served:
        yield served


@pytest.mark.parametrize("path", BODIES)
def test_streams_report_the_progress_of_the_prompt_and_timings_of_each_token(server, path):
    asked = {**BODIES[path], "cache_salt": path, "return_progress": True, "timings_per_token": True}
    found = [one for one in server.stream(path, asked) if isinstance(one, dict)]
    told = [one for one in found if "prompt_progress" in one]
    done = [one["prompt_progress"]["processed"] for one in told]
    assert len(told) > 2 and done == sorted(set(done)) and done[-1] == told[0]["prompt_progress"]["total"]
    assert {one["prompt_progress"]["cache"] for one in told} == {done[0]} == {0}
    assert [one["timings"]["prompt_n"] for one in told] == done
    assert told[0]["timings"]["prompt_ms"] == 0 == told[-1]["timings"]["predicted_n"]
    timed = [one["timings"]["predicted_n"] for one in found[found.index(told[-1]) + 1 :] if "timings" in one]
    assert len(timed) >= 2 and timed == sorted(timed) and timed[-1] == 4
    plain = [one for one in server.stream(path, BODIES[path]) if isinstance(one, dict)]
    assert not any("prompt_progress" in one for one in plain) and sum("timings" in one for one in plain) <= 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_verbose_shows_the_prompt_as_the_model_reads_it(server, path):
    whole = server.post(path, {**BODIES[path], "verbose": True})["__verbose"]
    assert TEXT in whole["prompt"] and len(whole["tokens"]) == 4
    assert ("User" in whole["prompt"]) == ("chat" in path)
    *_, last, _ = server.stream(path, {**BODIES[path], "verbose": True, "n": 2})
    assert last["choices"][0]["finish_reason"] and TEXT in last["__verbose"]["prompt"]
    assert "__verbose" not in server.post(path, {**BODIES[path], "verbose": False})
    assert server.request("POST", path, {**BODIES[path], "verbose": 1})[0] == 400


def test_one_message_of_the_assistant_may_end_a_chat_but_not_two(server):
    own = {"role": "assistant", "content": "I"}
    for path in ("/v1/chat/completions", "/apply-template"):
        assert server.request("POST", path, {"messages": [*HI, own], "max_tokens": 1})[0] == 200
        status, _, reply = server.request("POST", path, {"messages": [*HI, own, own], "max_tokens": 1})
        assert status == 400 and "several messages of the assistant" in reply["error"]["message"]


def test_tokens_and_several_answers_come_if_they_are_wanted(llama):
    asked = {"prompt": "hello", "n_predict": 3, "temperature": 1, "ignore_eos": True}
    assert llama.post("/completion", asked)["tokens"] == []
    for name in ("n", "n_cmpl"):
        found = llama.post("/completion", {**asked, name: 2, "return_tokens": True})
        assert [len(one["tokens"]) for one in found] == [3, 3] and [one["index"] for one in found] == [0, 1]
    for wrong in ({"n_cmpl": 0}, {"return_tokens": 1}, {"n_indent": "a"}, {"t_max_predict_ms": 1.5}):
        assert llama.request("POST", "/completion", {**asked, **wrong})[0] == 400


@pytest.mark.long
def test_an_answer_that_fills_the_context_is_truncated(llama):
    asked = {"prompt": "hello", "ignore_eos": True, "response_fields": ["truncated", "stop_type"]}
    assert llama.post("/completion", {**asked, "n_predict": 5}) == {"truncated": False, "stop_type": "limit"}
    assert llama.post("/completion", {**asked, "n_predict": 5000}) == {"truncated": True, "stop_type": "limit"}


class Closable:
    closed = False

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (["a\n", "  b\n  c", "\nd", "e"], "a\n  b\n  c\n"),
        (["a\n", " ", " b\n", "   c\n\n"], "a\n  b\n   c\n"),
        (["a b\n  c"], "a b\n  c"),
    ],
)
def test_a_line_with_too_little_indentation_ends_a_code_completion(texts, kept):
    bounds, answer = Bounds(0, 2), Closable()
    found = "".join(bounds.apply(0, answer, Event(text, 1, 0.0)).text for text in texts if not answer.closed)
    assert found == kept and answer.closed == (kept != "".join(texts))
    assert not answer.closed or bounds.kept == {0: len(kept)}


def test_bounds_of_code_completions_end_them_with_a_limit(llama):
    """The biases make every other token a line break, or nearly."""
    asked = {"prompt": "hello", "n_predict": 500, "temperature": 1, "logit_bias": [["\n", 5]], "ignore_eos": True}
    asked["response_fields"] = ["content", "stop_type", "tokens_predicted"]
    for more in ({"n_indent": 4}, {"t_max_predict_ms": 1}):
        whole = llama.post("/completion", {**asked, **more})
        assert whole["stop_type"] == "limit" and whole["tokens_predicted"] < 500
        *pieces, last = llama.stream("/completion", {**asked, **more})
        assert last["stop_type"] == "limit" and last["tokens_predicted"] < 500
        assert "n_indent" not in more or "".join(one["content"] for one in pieces)[-1] in "\n \t"


def test_time_counts_from_the_first_token_and_ends_at_a_line():
    bounds, answer = Bounds(1e-9, 0), Closable()
    bounds.apply(0, answer, Event("a", 1, 0.0))
    time.sleep(0.001)
    bounds.apply(0, answer, Event("b", 1, 0.0))
    assert not answer.closed
    assert bounds.apply(0, answer, Event("c\nd", 1, 0.0)).text == "c\nd" and answer.closed


def test_samplers_that_are_not_listed_are_off(server):
    asked = {"prompt": "a", "n_predict": 1, "top_k": 5, "top_p": 0.5, "temp": 0.3, "repeat_penalty": 1.5}
    asked |= {"dry_multiplier": 1, "xtc_probability": 0.5, "min_p": 0.2, "presence_penalty": 1}
    status, headers, found = server.request("POST", "/completion", {**asked, "samplers": ["top-k", "typ_p", "infill"]})
    made = found["generation_settings"]
    assert status == 200 and headers["x-ignored-fields"] == "samplers (infill)"
    off = {"top_p": 1, "temperature": 1, "repeat_penalty": 1, "dry_multiplier": 0, "xtc_probability": 0, "min_p": 0}
    assert made["top_k"] == 5 and {name: made[name] for name in off} == off and made["presence_penalty"] == 0
    every = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    for path, kept in (("/completion", None), ("/v1/completions", None)):
        given = {**asked, "samplers": every}
        assert server.request("POST", path, given)[1].get("x-ignored-fields") == kept
        given["samplers"] = every[::-1]
        assert server.request("POST", path, given)[1]["x-ignored-fields"] == "samplers (order)"


def test_texts_break_sequences_of_dry(llama):
    made = llama.llm.prepare_completion
    seen = []
    llama.llm.prepare_completion = lambda *a, **given: seen.append(given) or made(*a, **given)
    try:
        llama.post("/completion", {"prompt": "a", "n_predict": 1, "dry_sequence_breakers": ["th", "\n"]})
    finally:
        del llama.llm.prepare_completion
    pieces = [llama.llm.tokenizer.piece(token) for token in seen[0]["dry_breakers"]]
    assert len(pieces) > 2 and all(b"th" in piece or b"\n" in piece for piece in pieces)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_options_that_are_off_are_accepted_and_refused_otherwise(server, path):
    off = {"top_n_sigma": -1, "adaptive_target": -1.0, "dynatemp_range": 0, "min_keep": 0, "use_beam_search": False}
    off |= {"skip_special_tokens": True, "include_stop_str_in_output": False, "bad_words": [], "prompt_logprobs": None}
    off |= {"parse_tool_calls": True, "reasoning_format": "auto", "include_reasoning": True} if "chat" in path else {}
    assert server.request("POST", path, {**BODIES[path], **off, "max_tokens": 1})[0] == 200
    on = {"top_n_sigma": 1.5, "adaptive_target": 0.5, "dynatemp_range": 0.2, "min_keep": 1, "use_beam_search": True}
    on |= {"skip_special_tokens": False, "include_stop_str_in_output": True, "bad_words": ["a"], "prompt_logprobs": 0}
    on |= {"parse_tool_calls": False, "reasoning_format": "none", "include_reasoning": False} if "chat" in path else {}
    for name in on:
        status, _, reply = server.request("POST", path, {**BODIES[path], name: on[name]})
        assert status == 400 and reply["error"]["message"].startswith(f"{name}: "), name


def test_other_files_come_before_an_infilling_prompt(llama, monkeypatch):
    llm = llama.llm
    plain = replace(llm.tokenizer.vocabulary, infill=(11, 12, 13), of_project=None, of_file=None)
    files, [a, b, name, text] = [{"filename": "n", "text": "t"}], map(llm.tokenize, ("a", "b", "n\nt", "filename\n"))
    bos = [llm.tokenizer.bos]
    for of_project, of_file, before in (
        (14, 15, [14, *llm.tokenize("project\n"), 15, *name, 15, *text]),
        (None, 15, [15, *name, 15, *text]),
        (None, None, llm.tokenize("\n\n--- snippet ---\n\nt")),
    ):
        monkeypatch.setattr(llm.tokenizer, "vocabulary", replace(plain, of_project=of_project, of_file=of_file))
        asked = {"input_prefix": "a", "input_suffix": "b", "input_extra": files, "n_predict": 2, "temperature": 0}
        found = llama.post("/infill", asked)
        ids = [*bos, *before, 11, *a, 12, *b, 13]
        assert found["tokens_evaluated"] == len(ids)
        assert (
            found["content"] == llama.post("/completion", {"prompt": ids, "n_predict": 2, "temperature": 0})["content"]
        )
    for wrong in ({}, {"filename": "ok"}, {"filename": 1, "text": "a"}, 5):
        assert llama.request("POST", "/infill", {**asked, "input_extra": [wrong]})[0] == 400


def test_a_suffix_is_filled_in_by_completions_and_by_ollama(llama, monkeypatch):
    llm = llama.llm
    monkeypatch.setattr(llm.tokenizer, "vocabulary", replace(llm.tokenizer.vocabulary, infill=(11, 12, 13)))
    ids = llm.infill_prompt("a", "b")
    asked = {"max_tokens": 3, "temperature": 0}
    text = llama.post("/v1/completions", {"prompt": ids, **asked})["choices"][0]["text"]
    found = llama.post("/v1/completions", {"prompt": "a", "suffix": "b", **asked})
    assert found["choices"][0]["text"] == text and found["usage"]["prompt_tokens"] == len(ids)
    body = {"prompt": "a", "suffix": "b", "stream": False, "options": {"num_predict": 3, "temperature": 0}}
    assert llama.post("/api/generate", body)["response"] == text
    for wrong in ({"suffix": 5}, {"suffix": "b", "echo": True}, {"suffix": "b", "prompt": [5, 6]}):
        assert llama.request("POST", "/v1/completions", {"prompt": "a", **asked, **wrong})[0] == 400


def test_vectors_have_the_requested_norm(llama):
    def vector(**more):
        return llama.post("/embedding", {"content": "the sea", **more})[0]["embedding"][0]

    unit = vector()
    assert sum(x * x for x in unit) == pytest.approx(1, abs=1e-3) and vector(embd_normalize=2) == unit
    assert sum(map(abs, vector(embd_normalize=1))) == pytest.approx(1, abs=1e-3)
    assert max(map(abs, vector(embd_normalize=0))) == pytest.approx(32760, rel=1e-3)
    assert sum(abs(x) ** 3 for x in vector(embd_normalize=3)) == pytest.approx(1, abs=1e-3)
    assert llama.request("POST", "/embedding", {"content": "a", "embd_normalize": -1})[0] == 400


def test_texts_that_are_embedded_or_ranked_are_counted():
    with serving(ServedModel("bert", str(golden("ranking-bert.gguf")))) as server:

        def counted():
            lines = server.get("/metrics").decode().splitlines()
            found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("llamacpp:"))
            assert "# TYPE llamacpp:n_tokens_max counter" in lines
            return [float(found[f"llamacpp:{name}"]) for name in ("prompt_tokens_total", "n_decode_total")]

        assert counted() == [0, 0]
        used = server.post("/v1/rerank", {"query": "sea", "documents": ["a", "b"]})["usage"]["prompt_tokens"]
        tokens, steps = counted()
        assert tokens == used > 0 and steps > 0
        server.post("/v1/embeddings", {"input": ["a", "the sea"]})
        assert counted()[0] > tokens and counted()[1] > steps


@pytest.mark.parametrize("more", [{"enable_thinking": False}, {"think": False}, {"thinking": {"type": "disabled"}}])
def test_reasoning_is_switched_by_the_fields_of_other_services(server, monkeypatch, more):
    seen, made = [], server.llm.prepare_chat_completion
    monkeypatch.setattr(
        server.llm, "prepare_chat_completion", lambda *a, **given: seen.append(given["think"]) or made(*a, **given)
    )
    asked = {"messages": HI, "max_tokens": 1}
    server.post("/v1/chat/completions", {**asked, **more})
    on = {name: {"type": "enabled"} if name == "thinking" else True for name in more}
    server.post("/v1/chat/completions", {**asked, **on})
    assert list(dict.fromkeys(seen)) == [False, True]  # what takes long in the event loop begins again on a thread
    for name in more:
        assert server.request("POST", "/v1/chat/completions", {**asked, name: "x"})[0] == 400


def test_responses_take_the_settings_of_sampling(server, monkeypatch):
    seen, made = [], server.llm.prepare_chat_completion
    monkeypatch.setattr(
        server.llm, "prepare_chat_completion", lambda *a, **given: seen.append(given) or made(*a, **given)
    )
    asked = {"frequency_penalty": 0.5, "logit_bias": {"5": -100}, "min_tokens": 1}
    _, headers, _ = server.request("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1, **asked})
    assert "x-ignored-fields" not in headers and seen[0].items() >= asked.items()
    assert server.request("POST", "/v1/responses", {"input": "a", "frequency_penalty": 1000})[0] == 400


def test_a_model_is_not_loaded_if_the_query_forbids_it():
    with serving(ServedModel("one", str(LLAMA)), ServedModel("two", str(LLAMA))) as server:
        asked = {"model": "two", "prompt": "a", "max_tokens": 1}
        status, _, reply = server.request("POST", "/v1/completions?autoload=false", asked)
        assert status == 400 and "not loaded" in reply["error"]["message"]
        assert server.get("/props?model=two")["is_sleeping"] and not server.get("/props?model=one")["is_sleeping"]
        assert server.request("POST", "/v1/completions?autoload=true", asked)[0] == 200
        assert server.request("POST", "/v1/completions?autoload=false", asked)[0] == 200


def test_changes_of_models_come_as_events():
    with serving(ServedModel("one", str(LLAMA)), ServedModel("two", str(LLAMA)), admin_keys=("admin",)) as server:
        connection = server.connect()
        connection.request("GET", "/models/sse")
        response = connection.getresponse()

        def until(wanted):
            while True:
                line = response.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data: "):
                    found = json.loads(line[6:])
                    if (found["event"], found["model"], found.get("data", {}).get("status")) == wanted:
                        return

        until(("model_status", "one", "loaded"))
        server.post("/models/load", {"model": "two"}, authorization="Bearer admin")
        until(("model_status", "two", "loaded"))
        server.post("/models/unload", {"model": "two"}, authorization="Bearer admin")
        until(("model_status", "two", "unloaded"))
        server.runner.signal()
        while response.readline():
            pass
        connection.close()


def test_slots_answer_503_if_none_is_idle(server, monkeypatch):
    assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 200
    monkeypatch.setattr(server.llm, "info", replace(server.llm.info, sequences=0))
    assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 503
    assert server.request("GET", "/slots")[0] == 200


def test_a_server_listens_on_several_addresses():
    first, second = listen_on("127.0.0.1, ::1", 0)
    try:
        assert first.getsockname()[1] == second.getsockname()[1]
        assert second.getsockname()[0] == "::1"
    finally:
        first.close()
        second.close()
