"""Fields and forms that clients of other servers send, and names that they look for in responses."""

import json
import re
from dataclasses import replace

import pytest

from rwkv_gpu.server.catalogue import ServedModel
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import golden
from tests.server.serving import LLAMA, MODEL, serving

HI = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"const": "Rome"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}


CHAT = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Loads a tiny model with a template that supports tools."""
    data = with_keys(golden("tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", CHAT)])
    with serving(ServedModel("llama", str(written(tmp_path_factory.mktemp("model"), data)))) as served:
        yield served


def test_a_schema_holds_in_every_form_of_every_api(llama):
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    chat = {"messages": HI, "max_tokens": 60}
    text = {"prompt": "hello", "max_tokens": 60}
    for more in (
        {"json_schema": SCHEMA}, {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"response_format": named, "grammar": ""},
        {"grammar": 'root ::= "{\\"city\\":\\"Rome\\"}"'}, {"guided_choice": ['{"city":"Rome"}']},
        {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"choice": ['{"city":"Rome"}']}},
    ):  # fmt: skip
        answer = llama.post("/v1/chat/completions", {**chat, **more})["choices"][0]["message"]["content"]
        assert json.loads(answer) == {"city": "Rome"}, more
        answer = llama.post("/v1/completions", {**text, **more})["choices"][0]["text"]
        assert json.loads(answer) == {"city": "Rome"}, more
    form = {"type": "json_schema", "schema": SCHEMA}
    for more in ({"output_config": {"format": form}}, {"output_format": form}):
        [part] = llama.post("/v1/messages", {**chat, **more})["content"]
        assert json.loads(part["text"]) == {"city": "Rome"}
        assert "citations" not in part
    ollama = {"messages": HI, "stream": False, "options": {"num_predict": 100}}
    assert isinstance(json.loads(llama.post("/api/chat", {**ollama, "format": "json"})["message"]["content"]), dict)


def prefer(llm, letter, monkeypatch):
    """Makes a model generate one token wherever a grammar allows it."""
    start, [token] = llm.start, llm.tokenize(letter)[-1:]

    def biased(prepared, *given, **more):
        requests = []
        for request, reader in prepared.requests:
            params = replace(request.params, temperature=0.0, logit_bias={token: 900.0})
            requests.append((replace(request, params=params), reader))
        return start(replace(prepared, requests=requests), *given, **more)

    monkeypatch.setattr(llm, "start", biased)


BOUNDED = {
    "n": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string", "maxLength": 9}, "t": {"type": "string"},
}  # fmt: skip
WIDE = {"type": "object", "properties": BOUNDED, "required": [*BOUNDED]}
FORM = {"type": "json_schema", "schema": WIDE}
ASKED = {"messages": HI, "max_tokens": 300}
CALLED = {"tools": [{"type": "function", "function": {"name": "f", "parameters": WIDE}}], "tool_choice": "required"}
# By API: the path, the request, and where its answer has the text.
IN_EACH_API = {
    "chat": ("/v1/chat/completions", {**ASKED, "response_format": FORM}, "choices 0 message content"),
    "call": ("/v1/chat/completions", {**ASKED, **CALLED}, "choices 0 message tool_calls 0 function arguments"),
    "completion": ("/v1/completions", {"prompt": "a", "max_tokens": 300, "json_schema": WIDE}, "choices 0 text"),
    "response": (
        "/v1/responses", {"input": "a", "max_output_tokens": 300, "text": {"format": {"name": "a", **FORM}}},
        "output 0 content 0 text",
    ),
    "message": ("/v1/messages", {**ASKED, "output_config": {"format": FORM}}, "content 0 text"),
    "ollama": (
        "/api/chat", {"messages": HI, "stream": False, "format": WIDE, "options": {"num_predict": 300}},
        "message content",
    ),
    "without a length": ("/completion", {"prompt": "a", "json_schema": WIDE}, "content"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", IN_EACH_API)
@pytest.mark.parametrize("letter", ["7", "a"])
def test_numbers_and_strings_of_a_schema_are_bounded_in_every_api(llama, name, letter, monkeypatch):
    """A model that repeats a digit or a letter writes JSON that ends, within the bounds of its schema."""
    prefer(llama.llm, letter, monkeypatch)
    path, body, place = IN_EACH_API[name]
    written = llama.post(path, body)
    for key in place.split():
        written = written[int(key) if key.isdigit() else key]
    found = json.loads(written)
    assert found.keys() == BOUNDED.keys()
    assert len(str(found["n"]).strip("-")) <= 19 and isinstance(found["n"], int)
    assert max(map(len, re.findall("[0-9]+", written.partition('"s"')[0]))) <= 24
    assert len(found["s"]) == 9 < len(found["t"])


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"json_schema": SCHEMA, "response_format": {"type": "json_object"}}),
        ("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": 3}}),
        ("/v1/chat/completions", {"structured_outputs": {"structural_tag": "a"}}),
        ("/v1/chat/completions", {"structured_outputs": {"regex": "a"}, "guided_json": SCHEMA}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": TOOL}], "grammar": 'root ::= "a"'}),
        ("/v1/messages", {"output_config": {"format": {"type": "xml"}}}),
        ("/v1/messages", {"output_config": 3}),
    ],
)
def test_forms_that_contradict_are_refused(llama, path, more):
    status, _, answer = llama.request("POST", path, {"messages": HI, "max_tokens": 4, **more})
    assert status == 400, answer


def test_an_answer_with_tools_and_a_schema_is_a_call_or_follows_the_schema(llama):
    """A required call is returned as a call. Otherwise the answer is a text or a call, and nothing else."""
    tools = [{"type": "function", "function": TOOL}]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    body = {"messages": HI, "max_tokens": 120, "tools": tools, "response_format": form, "temperature": 1}
    called = llama.post("/v1/chat/completions", {**body, "tool_choice": "required"})["choices"][0]["message"]
    assert called["tool_calls"][0]["function"]["name"] == "weather"
    for seed in range(6):
        message = llama.post("/v1/chat/completions", {**body, "seed": seed})["choices"][0]["message"]
        if message.get("tool_calls"):
            assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
        else:
            assert json.loads(message["content"]) == {"city": "Rome"}
    items = {"input": "hello", "max_output_tokens": 120, "tools": [{"type": "function", **TOOL}]}
    items |= {"tool_choice": "required", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}
    assert llama.post("/v1/responses", items)["output"][-1]["type"] == "function_call"


def test_tools_that_the_server_does_not_run_are_left_out_and_named(llama):
    kinds = ("custom", "web_search", "local_shell", "mcp")
    tools = [{"type": kind, "name": kind} for kind in kinds] + [{"type": "function", **TOOL}]
    body = {"input": "hello", "max_output_tokens": 4, "tools": tools, "tool_choice": "auto"}
    status, headers, answer = llama.request("POST", "/v1/responses", body)
    assert status == 200, answer
    assert all(kind in headers["x-ignored-fields"] for kind in kinds)
    assert llama.request("POST", "/v1/responses", {**body, "tools": tools[:2]})[0] == 200
    status, _, answer = llama.request("POST", "/v1/responses", {**body, "tool_choice": {"type": "web_search"}})
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
    served = [{"type": "web_search_20250305", "name": "web_search"}]
    asked = {"messages": HI, "max_tokens": 2, "tools": served, "tool_choice": {"type": "auto"}}
    status, headers, answer = llama.request("POST", "/v1/messages", asked)
    assert status == 200 and "web_search_20250305" in headers["x-ignored-fields"], answer


def test_parts_of_tools_that_anthropic_runs_are_left_out_and_named(llama):
    search = [{"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}}, {"type": "text", "text": "a"}]
    body = {"messages": [*HI, {"role": "assistant", "content": search}, *HI], "max_tokens": 1}
    status, headers, _ = llama.request("POST", "/v1/messages", body)
    assert status == 200 and headers["x-ignored-fields"] == "messages[1].content[0] (server_tool_use)"


CHAT_PATH, TEXT_PATH, OWN_PATH = "/v1/chat/completions", "/v1/completions", "/completion"
FUNCTION = {"type": "function", "function": TOOL}
WRONG = [
    (CHAT_PATH, {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": "weather"}}, "tool_choice"),
    (CHAT_PATH, {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": None}}, "tool_choice"),
    (CHAT_PATH, {"tools": [{"type": "function", "function": {**TOOL, "strict": "x"}}]}, "tools"),
    (
        CHAT_PATH,
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools",
    ),
    (CHAT_PATH, {"stop": {"a": 1}}, "stop"),
    (CHAT_PATH, {"thinking": {"type": "enabled", "budget_tokens": "x"}}, None),
    (TEXT_PATH, {"tools": [FUNCTION]}, "tools"),
    (TEXT_PATH, {"messages": HI}, "messages"),
    (OWN_PATH, {"response_format": {"type": "json_object"}}, "response_format"),
    (OWN_PATH, {"n_predict": -5, "max_tokens": None}, "n_predict"),
    (OWN_PATH, {"n_probs": "x"}, "n_probs"),
    ("/embedding", {"content": 5}, "content"),
    ("/v1/messages", {"stop_sequences": [""]}, "stop_sequences"),
    ("/v1/messages", {"messages": None}, "messages"),
]


@pytest.mark.parametrize(("path", "more", "field"), WRONG)
def test_a_field_of_a_wrong_kind_is_refused_by_the_name_that_the_client_sent(llama, path, more, field):
    begun = {"prompt": "hello"} if path in (TEXT_PATH, OWN_PATH) else {"messages": HI}
    status, _, answer = llama.request("POST", path, {**begun, "max_tokens": 1, **more})
    assert status == 400, answer
    if field is not None:
        assert answer["error"]["message"].startswith(field), answer


def test_items_of_other_services_tools_are_read_or_left_out(llama):
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a text"}
    items = [
        {"role": "user", "content": "hello"}, custom,
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "local_shell_call", "call_id": "s"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {"role": "user", "content": "go"},
    ]  # fmt: skip
    status, headers, answer = llama.request("POST", "/v1/responses", {"input": items, "max_output_tokens": 2})
    assert status == 200, answer
    assert headers["x-ignored-fields"] == "input[3] (web_search_call), input[4] (local_shell_call)"
    count = llama.post("/v1/responses/input_tokens", {"input": items})["input_tokens"]
    assert count > llama.post("/v1/responses/input_tokens", {"input": items[:1] + items[4:]})["input_tokens"]


def test_a_prompt_of_a_completion_may_have_special_tokens(llama):
    """As in llama-server and vLLM."""
    echo = {"prompt": "a</s>b", "echo": True, "logprobs": 0, "max_tokens": 0}
    assert "</s>" in llama.post("/v1/completions", echo)["choices"][0]["logprobs"]["tokens"]
    assert "</s>" in llama.post("/completion", {"prompt": "a</s>b", "n_predict": 1})["prompt"]
    fields = {"response_fields": ["tokens_evaluated"], "n_predict": 1}
    special, plain = (llama.post("/completion", {"prompt": text, **fields}) for text in ("a</s></s>", "a</s>"))
    assert special == {"tokens_evaluated": plain["tokens_evaluated"] + 1}


def test_the_only_model_answers_to_any_name_unless_names_are_strict():
    body = {"messages": HI, "max_tokens": 2, "model": "gpt-4o"}
    quiet, other = ServedModel("quiet", str(MODEL)), ServedModel("other", str(LLAMA))
    with serving(quiet, catalogue={"any_name": True}) as server:
        assert server.post("/v1/chat/completions", body)["model"] == "quiet"
        assert server.post("/v1/messages", body)["model"] == "quiet"
    with serving(quiet, other, catalogue={"any_name": True}) as server:
        assert server.request("POST", "/v1/chat/completions", body)[0] == 404
    with serving(quiet, catalogue={}) as server:
        assert server.request("POST", "/v1/chat/completions", body)[0] == 404


def test_prompt_tokens_are_counted_before_a_request(llama):
    body = {"messages": HI, "max_tokens": 2}
    used = llama.post("/v1/chat/completions", body)["usage"]["prompt_tokens"]
    for path, fields in (("/chat/completions", body), ("/responses", {"input": HI})):
        for root in ("/v1", ""):
            assert llama.post(f"{root}{path}/input_tokens", fields)["input_tokens"] == used


def test_prompts_longer_than_the_context_are_counted_and_rendered(llama):
    """Clients count tokens to learn how much they must leave out."""
    messages = [{"role": "user", "content": "hello there " * 2000}]
    tools = [{"type": "function", "function": TOOL}]
    status, _, reply = llama.request("POST", "/v1/chat/completions", {"messages": messages})
    assert status == 400 and reply["error"]["type"] == "exceed_context_size_error"
    for path, fields in (
        ("/v1/chat/completions/input_tokens", {"messages": messages, "tools": tools}),
        ("/v1/responses/input_tokens", {"input": messages}),
        ("/v1/messages/count_tokens", {"messages": messages}),
    ):
        assert llama.post(path, fields)["input_tokens"] > 2 * llama.llm.context
    assert "there hello" in llama.post("/apply-template", {"messages": messages, "tools": tools})["prompt"]


def test_metrics_have_the_names_of_llama_server_and_vllm(llama):
    llama.post("/v1/completions", {"prompt": "hello", "max_tokens": 3})
    lines = llama.get("/metrics").decode().splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    total = values['rwkv_gpu_tokens_total{kind="generated",model="llama"}']
    assert values["llamacpp:tokens_predicted_total"] == total > 0
    assert values['vllm:generation_tokens_total{model_name="llama"}'] == total
    assert values["llamacpp:requests_processing"] == values['rwkv_gpu_requests_running{model="llama"}']
    assert values['vllm:num_requests_waiting{model_name="llama"}'] == 0
    assert not any("seats" in name for name in values)
