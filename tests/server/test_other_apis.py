"""The APIs of Anthropic, Ollama and llama.cpp's server, as their clients use them."""

import json
import math
from dataclasses import replace

import pytest

import rwkv_gpu
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.ollama import duration
from tests.engine.test_adapters import write
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import OWN
from tests.server.serving import LLAMA, events, serving

TALK = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
QWEN = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + TALK
ROME = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}}
SCHEMA = {**ROME, "required": ["city"], "additionalProperties": False}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    data = with_keys((OWN / "tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", QWEN)])
    path = written(tmp_path_factory.mktemp("model"), data)
    with serving(ServedModel("tiny", str(path)), ServedModel("other", str(LLAMA))) as served:
        yield served


def named(content):
    """Returns the events of a stream with names, as (name, data)."""
    found = []
    for block in content.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


# --- Anthropic


def prompt_tokens(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"]


def ask(llama, **more):
    return llama.post("/v1/messages", {"model": "tiny", "max_tokens": 8, "messages": HELLO, **more})


def test_anthropic_messages_are_answered(llama):
    message = ask(llama, system="Be kind.", temperature=0, top_k=5)
    assert message["type"] == "message" and message["role"] == "assistant" and message["model"] == "tiny"
    assert message["stop_reason"] in ("end_turn", "max_tokens")
    assert [part["type"] for part in message["content"]] in ([], ["text"])
    usage = message["usage"]
    again = ask(llama, system="Be kind.", temperature=0, top_k=5)["usage"]
    assert again["cache_read_input_tokens"] > 0
    assert prompt_tokens(again) == prompt_tokens(usage)


def test_anthropic_streams_make_the_same_message(llama):
    body = {"model": "tiny", "max_tokens": 12, "messages": HELLO, "temperature": 0}
    whole = llama.post("/v1/messages", body)
    _, headers, content = llama.request("POST", "/v1/messages", {**body, "stream": True})
    found = named(content)
    assert headers["content-type"].startswith("text/event-stream")
    assert [name for name, _ in found][:2] == ["message_start", "ping"] and found[-1][0] == "message_stop"
    text = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    assert text == "".join(part["text"] for part in whole["content"])
    ends = [data for name, data in found if name == "message_delta"]
    assert ends[0]["delta"]["stop_reason"] == whole["stop_reason"]
    assert ends[0]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_anthropic_tools_are_called_and_their_results_read(llama):
    tools = [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    body = {"model": "tiny", "max_tokens": 200, "messages": HELLO, "tools": tools, "tool_choice": choice}
    message = llama.post("/v1/messages", body)
    [part] = message["content"]
    assert message["stop_reason"] == "tool_use"
    assert (part["type"], part["name"], part["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert part["id"].startswith("toolu_")
    found = named(llama.request("POST", "/v1/messages", {**body, "stream": True})[2])
    partial = "".join(data["delta"]["partial_json"] for name, data in found if name == "content_block_delta")
    assert json.loads(partial) == {"city": "Rome"}
    result = {"type": "tool_result", "content": "rain"}
    talk = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": ""}, part]},
        {"role": "user", "content": [{**result, "tool_use_id": part["id"]}, {"type": "text", "text": "So?"}]},
    ]
    ended = llama.post("/v1/messages", {**body, "messages": talk, "tool_choice": {"type": "none"}})
    assert ended["role"] == "assistant"


def test_anthropic_counts_tokens_and_names_stop_sequences(llama):
    count = llama.post("/v1/messages/count_tokens", {"model": "tiny", "messages": HELLO})
    usage = ask(llama)["usage"]
    assert count == {"input_tokens": prompt_tokens(usage)}
    text = ask(llama, temperature=0, max_tokens=40)["content"][0]["text"]
    stop = text[len(text) // 2 :][:2]
    ended = ask(llama, temperature=0, max_tokens=40, stop_sequences=[stop])
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({"messages": HELLO}, "max_tokens is missing"),
        ({"max_tokens": 4, "messages": "hello"}, "messages is a string; it must be a list"),
        ({"max_tokens": 4, "messages": [{"role": "tool", "content": "x"}]}, "must be user or assistant"),
        ({"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "source"),
        ({"max_tokens": 4, "messages": HELLO, "thinking": True}, "thinking is True"),
        ({"max_tokens": 4, "messages": HELLO, "tool_choice": {"type": "must"}}, "tool_choice"),
        ({"max_tokens": 4, "messages": HELLO, "tools": ["bash"]}, "it must be an object with"),
        ({"max_tokens": 4, "messages": HELLO, "mcp_servers": [{}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_anthropic_errors_have_their_shape(llama, body, match):
    status, _, found = llama.request("POST", "/v1/messages", body)
    assert status == 400 and found["type"] == "error" and found["error"]["type"] == "invalid_request_error"
    assert match in found["error"]["message"]


def test_anthropic_continues_with_the_answer_that_a_request_ends_with(llama):
    begun = [*HELLO, {"role": "assistant", "content": "the world"}]
    same = {"model": "tiny", "messages": begun, "continue_final_message": True, "max_tokens": 8, "temperature": 0}
    expected = llama.post("/v1/chat/completions", same)
    answer = ask(llama, messages=begun, temperature=0)
    assert answer["content"][0]["text"] == expected["choices"][0]["message"]["content"]
    assert prompt_tokens(answer["usage"]) == expected["usage"]["prompt_tokens"]
    called = {"type": "tool_use", "id": "a", "name": "w", "input": {}}
    ask(llama, messages=[*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "the"}, called]}])


def test_anthropic_keys_are_accepted_in_their_own_header():
    with serving(api_keys=("secret",)) as served:
        body = {"max_tokens": 2, "messages": HELLO}
        assert served.request("POST", "/v1/messages", body)[0] == 401
        assert served.request("POST", "/v1/messages", body, x_api_key="secret")[0] == 200


# --- Ollama


def lines(content):
    return [json.loads(line) for line in content.decode().splitlines()]


def test_ollama_chats_stream_by_default_or_return_whole_answers(llama):
    body = {"model": "tiny:latest", "messages": HELLO, "options": {"num_predict": 8, "temperature": 0, "num_ctx": 512}}
    _, headers, content = llama.request("POST", "/api/chat", body)
    found = lines(content)
    assert headers["content-type"] == "application/x-ndjson"
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    last = found[-1]
    assert last["done_reason"] in ("stop", "length") and last["eval_count"] > 0 and last["total_duration"] > 0
    whole = llama.post("/api/chat", {**body, "stream": False})
    assert whole["message"]["content"] == "".join(line["message"]["content"] for line in found)
    assert whole["message"]["role"] == "assistant" and whole["done"]


def test_ollama_tools_and_formats_work(llama):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    body = {"messages": HELLO, "stream": False, "options": {"num_predict": 100}}
    answer = llama.post("/api/chat", {**body, "format": SCHEMA})
    assert json.loads(answer["message"]["content"]) == {"city": "Rome"}
    assert llama.post("/api/chat", {**body, "tools": tools, "options": {"num_predict": 2}})["done"]


def test_messages_of_ollama_keep_thoughts_calls_and_the_names_of_tools(llama, monkeypatch):
    asked, prepare = [], llama.llm.prepare_chat_completion
    monkeypatch.setattr(
        llama.llm,
        "prepare_chat_completion",
        lambda *, messages, **more: asked.append(messages) or prepare(messages, **more),
    )
    calls = [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]
    thought = {"role": "assistant", "content": "", "thinking": "Where?", "tool_calls": calls, "images": []}
    result = {"role": "tool", "tool_name": "weather", "content": "dry"}
    body = {"messages": [*HELLO, thought, result], "stream": False, "options": {"num_predict": 1}}
    assert llama.post("/api/chat", body)["done"]
    given = {"role": "assistant", "content": "", "reasoning_content": "Where?", "tool_calls": calls}
    assert asked[0] == [*HELLO, given, {"role": "tool", "name": "weather", "content": "dry"}]


def test_ollama_generates_raw_or_by_the_template(llama):
    body = {"prompt": "hello", "stream": False, "options": {"num_predict": 5, "temperature": 0}}
    raw = llama.post("/api/generate", {**body, "raw": True})
    chat = llama.post("/api/generate", {**body, "system": "Be kind."})
    assert raw["prompt_eval_count"] < chat["prompt_eval_count"]
    streamed = lines(llama.request("POST", "/api/generate", {**body, "raw": True, "stream": True})[2])
    assert "".join(line["response"] for line in streamed) == raw["response"]


def test_ollamas_lines_can_be_read_again(llama):
    """Each line is an event. Lines have no numbers, because each is plain JSON."""
    body = {"prompt": "hello", "raw": True, "options": {"num_predict": 5, "temperature": 0}, "resumable": True}
    _, headers, content = llama.request("POST", "/api/generate", body)
    found = lines(content)
    assert found[-1]["done"] and len(found) > 2
    path = f"/v1/streams/{headers['x-stream-id']}"
    for after in (0, 2, len(found)):
        _, headers, again = llama.request("GET", f"{path}?after={after}")
        assert headers["content-type"] == "application/x-ndjson" and again == b"".join(content.splitlines(True)[after:])


def test_ollama_lists_shows_loads_and_unloads_models(llama):
    assert [model["name"] for model in llama.get("/api/tags")["models"]] == ["tiny:latest", "other:latest"]
    assert [model["name"] for model in llama.get("/api/ps")["models"]] == ["tiny:latest"]
    assert llama.post("/api/generate", {"model": "other"})["done_reason"] == "load"
    assert len(llama.get("/api/ps")["models"]) == 2
    assert llama.post("/api/generate", {"model": "other", "keep_alive": 0})["done_reason"] == "unload"
    assert [model["name"] for model in llama.get("/api/ps")["models"]] == ["tiny:latest"]
    shown = llama.post("/api/show", {"model": "tiny"})
    assert shown["capabilities"] == ["completion", "tools"] and shown["template"] == QWEN
    bare = llama.post("/api/show", {"model": "other"})
    assert bare["capabilities"] == ["completion"] and bare["template"] == "", "its file has no chat template"
    assert shown["details"]["family"] == "llama" and shown["model_info"]["general.architecture"] == "llama"
    assert llama.get("/api/version")["version"] == llama.service.config.version


@pytest.mark.parametrize(
    ("context", "trained", "runs", "knows"),
    [(512, 2048, 512, 2048), (None, 2048, 2048, 2048), (512, None, 512, 512), (None, None, None, None)],
)
def test_a_model_without_a_limit_has_no_context_of_0(llama, monkeypatch, context, trained, runs, knows):
    """Both context lengths are left out, the current and the trained one, because clients take 0 for no room at all."""
    info = replace(llama.llm.info, context=context, trained_context=trained)
    monkeypatch.setattr(llama.llm, "info", info)
    assert llama.get("/api/ps")["models"][0].get("context_length") == runs
    assert llama.get("/props")["default_generation_settings"]["n_ctx"] == (runs or 0)
    assert llama.post("/api/show", {"model": "tiny"})["model_info"].get("llama.context_length") == knows


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("1h30m", 5400), ("1.5m", 90), ("2m0.5s", 120.5), ("250ms", 0.25), (".5h", 1800), ("0", 0), ("-0s", 0), (7, 7),
     ("-1m", math.inf), ("1h1", ...), ("nan", ...), ("", ...), ("m", ...), ("1e3s", ...), ("9" * 10**6, ...),
     (True, ...)],
)  # fmt: skip
def test_durations_equal_those_of_ollama(given, seconds):
    if seconds is not ...:
        assert duration(given) == seconds
        return
    with pytest.raises(ApiError, match="keep_alive"):
        duration(given)


@pytest.mark.parametrize("path", ["/api/generate", "/completion"])
@pytest.mark.parametrize(("switch", "active"), [(None, False), (0, False), (1, True), (2, True)])
def test_mirostat_is_off_unless_its_switch_is_on(llama, monkeypatch, path, switch, active):
    """Clients send all settings: a target together with a switch that is off."""
    asked, prepare = [], llama.llm.prepare_completion
    monkeypatch.setattr(
        llama.llm, "prepare_completion", lambda *a, **given: asked.append(given) or prepare(*a, **given)
    )
    settings = {"mirostat": switch, "mirostat_tau": 3.0, "mirostat_eta": 0.2, "temperature": 1.0}
    body = {"prompt": "hello", "stream": False, "raw": True, "options": {**settings, "num_predict": 1}}
    llama.post(path, body if path == "/api/generate" else {"prompt": "hello", "n_predict": 1, **settings})
    assert [given.get("mirostat_tau") for given in asked] == [3.0 if active else None] * len(asked)
    assert asked


def test_empty_fields_that_clients_send_have_no_effect(llama):
    body = {"prompt": "hello", "stream": False, "options": {"num_predict": 2}}
    assert llama.post("/api/generate", {**body, "suffix": "", "template": "", "system": "", "images": [], "format": ""})
    assert llama.post("/completion", {"prompt": "hello", "n_predict": 2, "grammar": "", "image_data": []})


@pytest.mark.parametrize("seconds", [1e300, 10**400, "1" * 90 + "h", -1])
def test_a_very_long_keep_alive_means_for_ever(llama, seconds):
    llama.post("/api/generate", {"model": "tiny", "keep_alive": seconds})
    assert llama.get("/api/ps")["models"][0]["expires_at"].startswith("9999-12-31")


def test_options_that_do_nothing_are_named(llama):
    options = {
        "num_ctx": 4096,
        "num_predict": 1,
        "xtc_probability": 0.1,
        "seed": -1,
        "numa": False,
        "top_k": None,
        "num_gpu": None,
    }
    body = {"messages": HELLO, "stream": False, "options": options}
    assert llama.request("POST", "/api/chat", body)[1]["x-ignored-fields"] == "options.num_ctx, options.numa"


def test_ollama_embeddings_are_returned(llama):
    assert (
        llama.post("/api/embed", {"input": []})["embeddings"] == llama.post("/api/embed", {"input": ""})["embeddings"]
    )
    assert llama.post("/api/embed", {"input": []})["embeddings"] == []
    found = llama.post("/api/embed", {"model": "tiny", "input": ["hello", "world"]})
    assert len(found["embeddings"]) == 2 and found["prompt_eval_count"] > 0
    long = "a long text " * 2000
    assert llama.request("POST", "/api/embed", {"input": long, "truncate": False})[0] == 400
    assert llama.request("POST", "/api/embed", {"input": long, "truncate": 1})[0] == 400
    cut = llama.post("/api/embed", {"input": long})
    assert cut["prompt_eval_count"] == llama.llm.context
    assert llama.post("/api/embeddings", {"prompt": long})["embedding"] == pytest.approx(cut["embeddings"][0], abs=1e-5)
    one = llama.post("/api/embeddings", {"model": "tiny", "prompt": "hello"})
    assert one["embedding"] == pytest.approx(found["embeddings"][0], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "match"),
    [
        ("/api/chat", {"model": "none", "messages": HELLO}, 404, "no model 'none'"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["a"]}]}, 400, "images"),
        ("/api/chat", {"messages": HELLO, "options": 3}, 400, "options is 3"),
        ("/api/chat", {"messages": HELLO, "format": "xml"}, 400, "format is 'xml'"),
        ("/api/chat", {"messages": HELLO, "keep_alive": "soon"}, 400, "keep_alive"),
        ("/api/generate", {"prompt": 3}, 400, "prompt is 3; it must be a string"),
        ("/api/generate", {"prompt": "x", "template": "y"}, 400, "template"),
        ("/api/push", {"model": "x"}, 501, "models come from the hub"),
        ("/api/pull", {"model": "x"}, 403, "--admin-key-file"),
        ("/api/show", {}, 400, "model is missing"),
    ],
)
def test_errors_of_ollamas_api_are_one_sentence(llama, path, body, status, match):
    got, _, found = llama.request("POST", path, body)
    assert got == status and match in found["error"]


# --- llama.cpp's server


def test_llama_server_completions_are_answered(llama):
    body = {"prompt": "hello", "n_predict": 6, "temperature": 0, "return_tokens": True}
    whole = llama.post("/completion", body)
    assert whole["stop"] and whole["stop_type"] in ("limit", "eos") and whole["tokens_predicted"] <= 6
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"] == len(whole["tokens"])
    found = events(llama.request("POST", "/completion", {**body, "stream": True})[2])
    assert "".join(one["content"] for one in found) == whole["content"]
    assert [one["stop"] for one in found] == [False] * (len(found) - 1) + [True]
    held = llama.post("/completion", {"prompt": "x", "n_predict": 60, "json_schema": SCHEMA})
    assert json.loads(held["content"]) == {"city": "Rome"}
    word = llama.post("/completion", {**body, "n_predict": 40, "stop": [whole["content"][2:4]]})
    assert word["stop_type"] == "word" and word["stopping_word"] == whole["content"][2:4]


def test_biases_of_llama_server_are_pairs_of_a_token_or_a_text(llama):
    body = {"prompt": "hello", "n_predict": 4, "temperature": 0, "return_tokens": True}
    [token] = llama.post("/tokenize", {"content": "a"})["tokens"]
    for wanted in ([[token, 100]], [["a", 100]], {str(token): 100}, {"a": 100}):
        assert llama.post("/completion", {**body, "logit_bias": wanted})["tokens"] == [token] * 4
    banned = llama.post("/completion", {**body, "logit_bias": [["a", 100], [token, False]]})
    assert token not in banned["tokens"]


def test_n_probs_gives_the_likeliest_tokens_of_each_place(llama):
    body = {"prompt": "hello", "n_predict": 4, "temperature": 0, "n_probs": 3, "return_tokens": True}
    whole = llama.post("/completion", body)
    found = whole["completion_probabilities"]
    assert [one["id"] for one in found] == whole["tokens"]
    for one in found:  # greedy: each token is the most likely
        assert one["top_logprobs"][0]["id"] == one["id"] and len(one["top_logprobs"]) == 3
        assert one["top_logprobs"][0]["logprob"] == pytest.approx(one["logprob"], abs=1e-6)  # float32
        assert bytes(one["bytes"]).decode("utf-8", "replace") == one["token"]
    chunks = events(llama.request("POST", "/completion", {**body, "stream": True})[2])
    assert [one for chunk in chunks for one in chunk.get("completion_probabilities", ())] == found
    assert "completion_probabilities" not in llama.post("/completion", {**body, "n_probs": 0})


def test_several_prompts_of_llama_servers_completion_have_an_answer_each(llama):
    body = {"n_predict": 6, "temperature": 0}
    alone = [llama.post("/completion", {**body, "prompt": prompt})["content"] for prompt in ("hello", "a b c")]
    found = llama.post("/completion", {**body, "prompt": ["hello", "a b c"]})
    assert [(one["index"], one["content"]) for one in found] == [*enumerate(alone)]
    chunks = events(llama.request("POST", "/completion", {**body, "prompt": ["hello", "a b c"], "stream": True})[2])
    for index, text in enumerate(alone):
        mine = [one for one in chunks if one["index"] == index]
        assert "".join(one["content"] for one in mine) == text
        assert [one["stop"] for one in mine] == [False] * (len(mine) - 1) + [True]
    assert llama.post("/completion", {**body, "prompt": ["hello"]})["content"] == alone[0]


def test_scales_of_unknown_adapters_are_refused_by_name(llama):
    for path, body in (
        ("/completion", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": HELLO}),
    ):
        status, _, found = llama.request("POST", path, {**body, "lora": {"poet": 0.5}})
        assert status == 400 and "lora names 'poet'; loaded: none" in found["error"]["message"]
    for wrong in ({}, [{"id": 0}], [5]):
        assert llama.request("POST", "/lora-adapters", wrong)[0] == 400
    assert llama.post("/lora-adapters", []) == {"success": True}


def test_adapters_are_listed_and_scaled_by_their_numbers_as_with_llama_server(tmp_path):
    specs = [(write(tmp_path, "llama", name, seed=seed), 0.0) for seed, name in enumerate(("first", "second"))]

    def load(path, progress):
        return rwkv_gpu.load(path, device="cpu", lora=specs, progress=progress)

    body = {"prompt": "hello", "n_predict": 6, "temperature": 0}
    with serving(ServedModel("tiny", str(LLAMA)), load=load) as server:
        listed = server.get("/lora-adapters")
        assert listed == [{"id": 0, "path": "first", "scale": 0.0}, {"id": 1, "path": "second", "scale": 0.0}]
        answers = [
            server.post("/completion", {**body, "lora": lora})["content"]
            for lora in ([], [{"id": 1, "scale": 0.5}], {"second": 0.5}, [{"id": 0, "scale": 1}])
        ]
        assert answers[1] == answers[2] and len(set(answers)) == 3
        for wrong in ([{"id": 2, "scale": 1}], [{"scale": 1}], [5], [{"id": 0, "scale": "x"}], {"first": "x"}):
            status, _, found = server.request("POST", "/completion", {**body, "lora": wrong})
            assert (status, found["error"]["param"]) == (400, "lora")
        assert server.post("/lora-adapters", [{"id": 1, "scale": 0.5}]) == {"success": True}
        assert [one["scale"] for one in server.get("/lora-adapters")] == [0.0, 0.5]
        assert server.post("/completion", body)["content"] == answers[1]
        assert server.post("/completion", {**body, "lora": []})["content"] == answers[0]
        chosen = {"prompt": "hello", "max_tokens": 6, "temperature": 0}
        assert server.post("/v1/completions", chosen)["choices"][0]["text"] == answers[1]
        assert server.request("POST", "/lora-adapters", [{"id": 0, "scale": "x"}])[0] == 400
        assert server.post("/completion", body)["content"] == answers[1]
    with serving(ServedModel("tiny", str(LLAMA)), load=load, api_keys=("k",), admin_keys=("a",)) as server:
        for key, expected in (("k", 401), ("a", 200)):
            headers = {"authorization": f"Bearer {key}"}
            assert server.request("POST", "/lora-adapters", [{"id": 1, "scale": 0.5}], **headers)[0] == expected


def test_llama_server_routes_for_tokens_and_templates_work(llama):
    tokens = llama.post("/tokenize", {"content": "hello world"})["tokens"]
    assert llama.post("/detokenize", {"tokens": tokens})["content"].replace("▁", " ").strip() == "hello world"
    assert llama.post("/detokenize", {"tokens": [2]})["content"] == "</s>"
    pieces = llama.post("/tokenize", {"content": "é", "with_pieces": True})["tokens"]
    assert {"id", "piece"} == pieces[0].keys()
    assert llama.post("/apply-template", {"messages": HELLO})["prompt"] == "user: hello\nassistant:"


def test_a_template_is_applied_as_to_a_chat_completion(llama):
    tool = {"type": "function", "function": {"name": "wave", "parameters": {"type": "object"}}}
    body = {"messages": [*HELLO, {"role": "assistant", "content": "the"}], "continue_final_message": True}
    text = llama.post("/apply-template", {**body, "tools": [tool], "chat_template_kwargs": {"mood": "good"}})["prompt"]
    assert "wave" in text and text.endswith("assistant: the")
    tokens = llama.post("/v1/chat/completions", {**body, "tools": [tool], "max_tokens": 1})["usage"]["prompt_tokens"]
    assert len(llama.post("/tokenize", {"content": text, "add_special": True})["tokens"]) == tokens
    assert llama.request("POST", "/apply-template", {"messages": HELLO, "tool_choice": "no"})[0] == 400


def test_infilling_puts_prefix_suffix_and_prompt_between_its_tokens(llama, monkeypatch):
    before, between, after = (llama.llm.tokenizer.encode(text, parse=True) for text in ("<s>", "</s>", "<unk>"))
    vocabulary = replace(llama.llm.tokenizer.vocabulary, infill=(*before, *between, *after))
    monkeypatch.setattr(llama.llm.tokenizer, "vocabulary", vocabulary)
    prefix, suffix, begun = (
        llama.post("/tokenize", {"content": text})["tokens"] for text in ("if a", "return", " then")
    )
    ids = [llama.llm.tokenizer.bos, *before, *prefix, *between, *suffix, *after, *begun]
    asked = {"n_predict": 4, "temperature": 0}
    found = llama.post("/infill", {"input_prefix": "if a", "input_suffix": "return", "prompt": " then", **asked})
    assert found["content"] == llama.post("/completion", {"prompt": ids, **asked})["content"]
    assert found["tokens_evaluated"] == len(ids)


@pytest.mark.parametrize("effort", ["none", "minimal", "high", "much"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", lambda effort: {"messages": HELLO, "max_tokens": 1, "reasoning_effort": effort}),
        ("/v1/responses", lambda effort: {"input": "hello", "max_output_tokens": 1, "reasoning": {"effort": effort}}),
        ("/api/chat", lambda effort: {"messages": HELLO, "options": {"num_predict": 1}, "think": effort}),
    ],
)
def test_an_effort_reaches_the_template_by_every_api(llama, monkeypatch, path, body, effort):
    asked, prepare = [], llama.llm.prepare_chat_completion
    monkeypatch.setattr(
        llama.llm, "prepare_chat_completion", lambda *a, **given: asked.append(given) or prepare(*a, **given)
    )
    status, _, answer = llama.request("POST", path, body(effort))
    if effort == "much" or (path == "/api/chat" and effort in ("none", "minimal")):
        assert status == 400 and effort in str(answer)
        return
    assert status == 200
    expected = {
        "none": (False, None),
        "minimal": (True, {"reasoning_effort": "low"}),
        "high": (True, {"reasoning_effort": "high"}),
    }
    assert all((given["think"], given.get("chat_template_kwargs")) == expected[effort] for given in asked) and asked


def test_llama_servers_routes_work_without_v1(llama):
    assert llama.get("/models") == llama.get("/v1/models")
    body = {"messages": HELLO, "max_tokens": 3, "temperature": 0}
    chats = [llama.post(path, body)["choices"] for path in ("/chat/completions", "/v1/chat/completions")]
    assert chats[0] == chats[1]
    vectors = [one["embedding"] for one in llama.post("/v1/embeddings", {"input": ["a", "b"]})["data"]]
    for path, name in (("/embedding", "content"), ("/embeddings", "input")):
        found = llama.post(path, {name: ["a", "b"]})
        assert [(one["index"], one["embedding"]) for one in found] == [(0, [vectors[0]]), (1, [vectors[1]])]
    assert llama.request("POST", "/embedding", {})[0] == 400


def test_unsupported_routes_answer_501_with_an_alternative(llama):
    for path in ("/v1/audio/speech", "/v1/images/generations", "/v1/fine_tuning/jobs"):
        status, _, found = llama.request("POST", path, {})
        assert status == 501 and "not supported" in found["error"]["message"]
    status, _, found = llama.request("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert status == 501 and "infilling" in found["error"]["message"]
