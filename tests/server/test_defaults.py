"""Defaults for requests that do not set a value: those of the server, those of a model, and the limit of reasoning."""

import json

import click
import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.answer_defaults import NAMES
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.preset import Preset, write_preset
from rwkv_gpu.llm.reasoning_options import ReasoningOptions
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.defaults import Defaults
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import golden
from tests.server.serving import MODEL, serving
from tests.text import template_matrix

Q = [{"role": "user", "content": "hello"}]
THINKS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:<think>{% endif %}"
)


def thinking(folder, template=THINKS):
    """Returns a tiny model whose template opens reasoning."""
    data = with_keys(golden("tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", template)])
    return ServedModel("tiny", str(written(folder, data)), ("small",))


def settings(server, **query):
    path = "/props" + "".join(f"?{name}={value}" for name, value in query.items())
    return server.get(path)["default_generation_settings"]["params"]


def test_settings_apply_in_every_api_unless_a_request_has_its_own():
    of_all = Preset("", settings={"max_tokens": 3, "temperature": 0.0})
    with serving(ServedModel("quiet", str(MODEL)), catalogue={"defaults": Defaults(of_all)}) as server:
        asks = {
            "/v1/chat/completions": ({"messages": Q}, "max_tokens", lambda one: one["usage"]["completion_tokens"]),
            "/v1/completions": ({"prompt": "The sea"}, "max_tokens", lambda one: one["usage"]["completion_tokens"]),
            "/completion": ({"prompt": "The sea"}, "n_predict", lambda one: one["tokens_predicted"]),
            "/v1/responses": ({"input": "hello"}, "max_output_tokens", lambda one: one["usage"]["output_tokens"]),
            "/api/chat": ({"messages": Q, "stream": False}, "num_predict", lambda one: one["eval_count"]),
            "/api/generate": (
                {"prompt": "a", "raw": True, "stream": False},
                "num_predict",
                lambda one: one["eval_count"],
            ),
        }
        for path, (body, name, count) in asks.items():
            assert count(server.post(path, body)) == 3, path
            more = {"options": {name: 2}} if path.startswith("/api") else {name: 2}
            assert count(server.post(path, {**body, **more})) == 2, path
        unlimited = {"prompt": "The sea", "n_predict": -1, "grammar": 'root ::= "abcdefgh"'}
        assert server.post("/completion", unlimited)["tokens_predicted"] == 3, "-1 is the server's default"
        assert (settings(server)["temperature"], settings(server)["n_predict"]) == (0.0, 3)


def test_a_model_s_own_defaults_come_before_those_of_all_and_after_those_of_its_table(tmp_path):
    path = tmp_path / "sea.preset.json"
    write_preset(path, Preset(str(MODEL), "Be a sailor.", settings={"top_k": 7, "min_p": 0.1}))
    models = [ServedModel("plain", str(MODEL)), ServedModel("sea", str(path), ("ocean",))]
    of_all = Preset("", "Be brief.", settings={"top_k": 5, "min_p": 0.2, "seed": 4})
    of_models = {"ocean": Preset("", settings={"min_p": 0.3}), "other": Preset("", settings={"seed": 9})}
    with serving(*models, catalogue={"defaults": Defaults(of_all, of_models)}) as server:

        def prompt(name, messages=Q):
            return server.post("/apply-template", {"messages": messages, "model": name})["prompt"]

        assert "Be brief." in prompt("plain") and "Be a sailor." in prompt("sea")
        assert "Be" not in prompt("sea", [{"role": "system", "content": "No."}, *Q])
        values = {
            name: [settings(server, model=name)[key] for key in ("top_k", "min_p", "seed")] for name in ("plain", "sea")
        }
        assert values == {"plain": [5, 0.2, 4], "sea": [7, 0.3, 4]}
        assert server.post("/api/show", {"model": "sea"})["system"] == "Be a sailor."


def test_reasoning_is_off_or_on_by_default_and_templates_have_variables(tmp_path):
    template = template_matrix.load()[0]["Qwen-Qwen3-0.6B"]
    off = Preset("", reasoning=ReasoningOptions(think=False))
    with serving(thinking(tmp_path, template), catalogue={"defaults": Defaults(off)}) as server:

        def prompt(**more):
            return server.post("/apply-template", {"messages": Q, **more})["prompt"]

        assert prompt().endswith("<think>\n\n</think>\n\n")
        for asked in ({"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "high"}):
            assert not prompt(**asked).endswith("</think>\n\n")
    shown = Preset("", reasoning=ReasoningOptions(variables={"who": "the server", "what": "tea"}))
    template = "{{ messages[-1].content }} {{ who }} {{ what }}"
    with serving(thinking(tmp_path, template), catalogue={"defaults": Defaults(shown)}) as server:
        body = {"messages": Q, "chat_template_kwargs": {"what": "milk"}}
        assert server.post("/apply-template", body)["prompt"] == "hello the server milk"


def thoughts(server, path, body, **more):
    """Returns the reasoning and the answer of a request that is not streamed."""
    found = server.post(path, {**body, **more})
    if path == "/v1/messages":
        parts = {part["type"]: part.get("thinking", part.get("text")) for part in found["content"]}
        return parts.get("thinking", ""), parts.get("text", "")
    if path.startswith("/api"):
        return found["message"].get("thinking", ""), found["message"]["content"]
    if path == "/v1/responses":
        parts = {item["type"]: item["content"][0]["text"] for item in found["output"]}
        return parts.get("reasoning", ""), parts.get("message", "")
    message = found["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"]


def test_reasoning_is_limited_in_every_api(tmp_path):
    given = ReasoningOptions(limit=4, message="enough")
    with serving(thinking(tmp_path), catalogue={"defaults": Defaults(Preset("", reasoning=given))}) as server:
        fixed = {"temperature": 0}
        asks = {
            "/v1/chat/completions": {"messages": Q, "max_tokens": 40, **fixed},
            "/v1/responses": {"input": "hello", "max_output_tokens": 40, **fixed},
            "/v1/messages": {"messages": Q, "max_tokens": 40, **fixed},
            "/api/chat": {"messages": Q, "stream": False, "options": {"num_predict": 40, **fixed}},
        }
        for path, body in asks.items():
            thought, answer = thoughts(server, path, body)
            assert thought.endswith("enough") and answer, path
            assert len(thought.removesuffix("enough")) <= 7, path
        streamed = server.stream("/v1/chat/completions", asks["/v1/chat/completions"])
        deltas = [one["choices"][0]["delta"] for one in streamed if one != "[DONE]" and one["choices"]]
        whole = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert whole.strip() == thoughts(server, "/v1/chat/completions", asks["/v1/chat/completions"])[0].strip()


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"])
def test_a_request_has_a_limit_of_its_own(tmp_path, name):
    with serving(thinking(tmp_path)) as server:
        body = {"messages": Q, "max_tokens": 30, "temperature": 0}
        free, none = thoughts(server, "/v1/chat/completions", body)
        assert len(free) > 9 and not none, "without a limit, this model never ends its reasoning"
        thought, answer = thoughts(server, "/v1/chat/completions", body, **{name: 5})
        assert thought and free.startswith(thought) and answer
        assert thoughts(server, "/v1/chat/completions", body, **{name: 0})[0] == ""
        said = thoughts(server, "/v1/chat/completions", body, **{name: 0}, reasoning_budget_message="so")
        assert said[0] == "so" and said[1]
        assert thoughts(server, "/v1/chat/completions", body, **{name: -1})[0] == free
        answer = {"type": "json_schema", "json_schema": {"schema": {"enum": ["fox"]}}}
        held = thoughts(server, "/v1/chat/completions", body, **{name: 3}, response_format=answer)
        assert held[0] and json.loads(held[1]) == "fox"
        for wrong in (-2, 1.5, "many", True, 1 << 40):
            status, _, refused = server.request("POST", "/v1/chat/completions", {**body, name: wrong})
            assert status == 400 and "reasoning" in refused["error"]["message"], wrong


def test_anthropic_s_budget_limits_reasoning(tmp_path):
    with serving(thinking(tmp_path)) as server:
        body = {"messages": Q, "max_tokens": 30, "temperature": 0}
        thought, answer = thoughts(server, "/v1/messages", body, thinking={"type": "enabled", "budget_tokens": 4})
        assert thought and answer
        assert not thoughts(server, "/v1/messages", body, thinking={"type": "adaptive"})[1]


def options_of(tmp_path, monkeypatch, text="", *args):
    """Returns the defaults that `serve` would use with these options: for all models, and for single ones."""
    found = []

    def ended(setup):
        found.append(setup.options["defaults"])
        raise BadInput("that is all")

    monkeypatch.setattr("rwkv_gpu.cli.serve.Setup.check_tables", ended)
    config = tmp_path / "serve.toml"
    config.write_text(text)
    done = CliRunner().invoke(cli, ["serve", str(MODEL), "--config", str(config), *args])
    assert "that is all" in done.output
    [defaults] = found
    return defaults


def test_options_and_tables_of_the_configuration_become_defaults(tmp_path, monkeypatch):
    text = """
temp = 0.25
reasoning-budget = 100
[model.quiet-rwkv7]
top-k = 4
system-prompt = "Be brief."
reasoning = "off"
mirostat = 2
stop = ["a", "b"]
logit-bias = ["5=-inf"]
n-predict = -1
"""
    monkeypatch.setenv("RWKV_GPU_TOP_P", "0.5")
    args = ("--min-p", "0.125", "--reasoning-budget-message", "so", "--chat-template-kwargs", '{"a": 1}')
    args += ("--ignore-eos",)
    of_all, of_models = options_of(tmp_path, monkeypatch, text, *args)
    assert of_all.settings == {"temperature": 0.25, "top_p": 0.5, "min_p": 0.125, "ignore_eos": True}
    assert of_all.reasoning == ReasoningOptions(None, 100, "so", {"a": 1})
    [(name, one)] = of_models.items()
    assert (name, one.system, one.reasoning.think) == ("quiet-rwkv7", "Be brief.", False)
    assert one.settings.pop("max_tokens") > 1 << 20 and one.settings.pop("logit_bias") == {5: float("-inf")}
    assert {name: [*value] if name == "stop" else value for name, value in one.settings.items()} == {
        "top_k": 4, "mirostat_tau": 5.0, "stop": ["a", "b"],
    }  # fmt: skip


def test_every_sampling_option_of_serve_becomes_a_default():
    params = cli.get_command(click.Context(cli), "serve").params
    assert {param.name for param in params if getattr(param, "group", "") in ("Sampling", "Answers")} == {*NAMES}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model = 3", "must hold a table"),
        ("[model.quiet-rwkv7]\nport = 3", "model.quiet-rwkv7: port is not an option"),
        ("[model.quiet-rwkv7]\ntemp = -1", "temperature is -1"),
        ("[model.quiet-rwkv7]\nreasoning = 'maybe'", "maybe"),
        ("[model.quiet-rwkv7]\nchat-template-kwargs = '[]'", "JSON object"),
        ("[model.qwen]\ntemp = 0", "table for the model qwen"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, text, why):
    config = tmp_path / "serve.toml"
    config.write_text(text)
    done = CliRunner().invoke(cli, ["serve", str(MODEL), "--config", str(config)])
    assert done.exit_code and why in done.output
