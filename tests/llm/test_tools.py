"""Tools are passed to the template, calls have OpenAI's form, and a grammar enforces required calls."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.tools import Calling, Tools
from rwkv_gpu.ops.sampling import allowed
from rwkv_gpu.text.grammar import Grammars, pool_of
from rwkv_gpu.text.thinking import TOOL
from rwkv_gpu.text.tool_calls import FORMS
from tests.gguf.writer import text_key, with_keys, written
from tests.golden_files import golden
from tests.text.test_grammar_closing import SameProcess

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}\n{% endfor %}assistant:"
TEMPLATES = {
    "hermes": "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + CHAT,
    "qwen3-coder": "{% if tools %}{{ tools | tojson }} <tool_call><function={% endif %}" + CHAT,
    "glm": "{% if tools %}{{ tools | tojson }} <arg_key>{% endif %}" + CHAT,
    "mistral": "{% if tools %}{{ tools | tojson }} [TOOL_CALLS]{% endif %}" + CHAT,
    "deepseek": "{% if tools %}{{ tools | tojson }} <｜tool▁calls▁begin｜>{% endif %}" + CHAT,
    "llama3": "{% if tools %}{{ tools | tojson }} <|python_tag|>{% endif %}" + CHAT,
    **{
        name: "{% if tools %}{{ tools | tojson }} " + mark + "{% endif %}" + CHAT
        for name, mark in (
            ("cohere", "<|START_ACTION|>"), ("gigachat", "<|function_call|>"), ("granite", "<|tool_call|>"),
            ("kimi", "<|tool_calls_section_begin|>"), ("nemotron", "<TOOLCALL>"),
            ("jamba", "<tool_calls>["), ("minimax-m1", "{{ '<tool_calls>\\n{\"name\": ' }}"),
        )
    },
    "rwkv": "rwkv-g1",
    "generic": CHAT,
}  # fmt: skip
BY_NAME = {form.name: form for _, form in FORMS}
QUESTION = {"role": "user", "content": "How is the weather?"}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now", "parameters": NOTHING}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    opened = {}

    def open_model(name):
        if name not in opened:
            data = with_keys(
                golden("tiny-llama.gguf").read_bytes(), [text_key("tokenizer.chat_template", TEMPLATES[name])]
            )
            opened[name] = rwkv_gpu.load(written(tmp_path_factory.mktemp(name), data), device="cpu")
        return opened[name]

    yield open_model
    for llm in opened.values():
        llm.close()


def prompt_of(llm, *messages, **more):
    [(request, _)] = llm.prepare_chat_completion([*messages], max_tokens=1, **more).requests
    return llm.detokenize(request.ids)


@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_required_call_keeps_to_its_schema_in_every_form(models, name):
    llm = models(name)
    for seed in range(3):
        more = {"tools": [WEATHER, NOW], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400}
        whole = llm.create_chat_completion([QUESTION], seed=seed, temperature=1, **more)
        [choice] = whole["choices"]
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        arguments = json.loads(call["function"]["arguments"])
        assert call["id"].startswith("call_") and call["type"] == "function"
        if call["function"]["name"] == "weather":
            assert arguments["city"] in ("Rome", "Oslo") and arguments["days"] in (1, 2)
        else:
            assert call["function"]["name"] == "now" and arguments == {}


NUMBER = {"type": "number", "description": "a size"}
NUMBERS = {
    "n": {"type": "integer"},
    "x": NUMBER,
    "least": {"type": "number", "minimum": 1},
    "o": {"type": "object", "properties": {"x": NUMBER}, "required": ["x"]},
    "list": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
    "either": {"anyOf": [NUMBER, {"type": "null"}]},
    "types": {"type": ["number", "string"]},
    "deep": {"oneOf": [{"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/x"}]}, "minItems": 1, "maxItems": 1}]},
    "any": {},
}


def measure(**properties):
    parameters = {"type": "object", "properties": properties, "required": [*properties], "$defs": {"x": NUMBER}}
    return {"type": "function", "function": {"name": "measure", "parameters": parameters}}


def grammar_of(llm, tool):
    """Returns the grammar of a required call of one tool."""
    tools = Tools.read({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False})
    form, after = tools.grammar(llm.chat_format.tool_form, llm.tokenizer)
    pool = SameProcess(pool_of(llm.tokenizer, llm.vocab_size)._vocabulary())
    return Grammars(llm.tokenizer, llm.vocab_size, pool=pool).grammar(form, after=after or "")


def written_by(llm, tool, wanted, begun=""):
    """Writes a required call; of the allowed tokens, takes the first of `wanted`, or else the first of all."""
    grammar, text = grammar_of(llm, tool), begun.encode()
    for token in llm.tokenize(begun, parse=True) if begun else ():
        grammar.accept(token)
    while not grammar.done and (tokens := {token: llm.tokenizer.piece(token) for token in allowed_ids(llm, grammar)}):
        first = [token for piece in wanted for token in tokens if tokens[token] == piece.encode()]
        token = (first or [*tokens])[0]
        text += llm.tokenizer.piece(token, special=True)
        grammar.accept(token)
        assert len(text) < 3000, text
    return text.decode()


@pytest.mark.parametrize("wanted", ["7}],\n<", "7.e}],\n<"])
@pytest.mark.parametrize("name", [*TEMPLATES, "harmony"])
def test_numbers_in_a_required_call_are_bounded_in_every_form_wherever_they_are(models, channels, name, wanted):
    """A model that repeats digits ends each number, and the arguments are JSON although the numbers are infinite."""
    llm, tool = channels if name == "harmony" else models(name), measure(**NUMBERS)
    begun = "<|channel|>commentary to=functions.measure<|message|>" if name == "harmony" else ""
    text = written_by(llm, tool, wanted, begun)
    assert max(map(len, re.findall("[0-9]+", text))) == 24
    calling = Calling(llm.chat_format.tool_form, Tools.read({"tools": [tool], "tool_choice": "required"}))
    calling.feed(text.replace("<|channel|>commentary to=", TOOL))
    calling.flush()
    [call] = calling.message()["tool_calls"]
    found = json.loads(call["function"]["arguments"], parse_constant=pytest.fail)
    assert found.keys() == NUMBERS.keys() and found["o"].keys() == {"x"} and len(found["list"]) == 2, found


STRINGS = [
    ({}, "if a < b:\n\t</x>\nreturn", ""),
    ({"enum": ["Rome", 'a "b"']}, 'a "b"', "c"),
    ({"const": "Rome"}, "Rome", "c"),
    ({"pattern": "^[a-c]+/$"}, "abc/", "d"),
    ({"pattern": "b"}, "abc", ""),
    ({"minLength": 2, "maxLength": 3}, "abc", "abcd"),
]


@pytest.mark.parametrize(("schema", "value", "refused"), STRINGS)
@pytest.mark.parametrize("name", ["glm", "qwen3-coder"])
def test_strings_in_elements_are_free_text_that_follows_its_schema(models, name, schema, value, refused):
    llm, tool = models(name), measure(text={"type": "string", **schema}, x=NUMBER)
    before = {
        "glm": "<tool_call>measure\n<arg_key>text</arg_key>\n<arg_value>",
        "qwen3-coder": "<tool_call>\n<function=measure>\n<parameter=text>\n",
    }[name]
    after = {
        "glm": "</arg_value>\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "qwen3-coder": "\n</parameter>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
    }[name]
    text = accepted(llm, tool, before + value + after)
    assert text == before + value + after
    calling = Calling(llm.chat_format.tool_form, Tools.read({"tools": [tool]}))
    calling.feed(text)
    [call] = calling.message()["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"text": value, "x": 1}
    if refused:
        assert accepted(llm, tool, before + refused) != before + refused


def accepted(llm, tool, text):
    """The beginning of a text that a grammar allows."""
    grammar, rest = grammar_of(llm, tool), text.encode()
    while rest:
        pieces = {token: llm.tokenizer.piece(token) for token in allowed_ids(llm, grammar)}
        fitting = [token for token, piece in pieces.items() if piece and rest.startswith(piece)]
        if not fitting:
            break
        token = max(fitting, key=lambda token: len(pieces[token]))
        grammar.accept(token)
        rest = rest[len(pieces[token]) :]
    return text.encode().removesuffix(rest).decode()


class WithMarks:
    """A tokenizer in which the marks of GLM's calls are tokens, as in its own vocabulary."""

    def __init__(self, inner):
        names = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
        self.inner, self.vocab_size = inner, inner.vocab_size + len(names)
        self.names = dict(enumerate(names, inner.vocab_size))
        self.ids = {name: token for token, name in self.names.items()}

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def encode(self, text, **more):
        return [self.ids[text]] if text in self.ids else self.inner.encode(text, **more)

    def piece(self, token, **more):
        return self.names[token].encode() if token in self.names else self.inner.piece(token, **more)


def test_marks_of_arguments_are_tokens_if_the_vocabulary_has_them(models):
    glm = models("glm")
    tokenizer = WithMarks(glm.tokenizer)
    llm = SimpleNamespace(tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, chat_format=glm.chat_format)
    tool = measure(text={"type": "string"}, x=NUMBER)
    text = "<tool_call>measure\n<arg_key>text</arg_key>\n<arg_value>a < b</arg_value>\n"
    text += "<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    assert accepted(llm, tool, text) == text
    numbers = written_by(llm, measure(o=NUMBERS["o"]), "7")
    assert max(map(len, re.findall("[0-9]+", numbers))) == 24


def test_a_call_cannot_be_required_if_no_grammar_supports_its_format(models):
    tools = Tools.read({"tools": [WEATHER], "tool_choice": "required"})
    for form in ("gemma4", "lfm2", "minimax"):
        with pytest.raises(BadInput, match=f"form of {form}.*use tool_choice auto"):
            tools.grammar(BY_NAME[form], models("hermes").tokenizer)


@pytest.mark.parametrize("name", ["hermes", "mistral", "glm"])
def test_a_named_function_is_called_and_streams_as_deltas(models, name):
    choice = {"type": "function", "function": {"name": "weather"}}
    more = {"tools": [NOW, WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 400}
    chunks = [*models(name).create_chat_completion([QUESTION], stream=True, temperature=0, **more)]
    deltas = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert deltas[0]["function"]["name"] == "weather" and deltas[0]["id"]
    assert json.loads("".join(part["function"].get("arguments", "") for part in deltas))["city"] in ("Rome", "Oslo")
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.long
def test_several_calls_may_be_required_at_once(models):
    more = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 900}
    counts = set()
    for seed in range(8):
        whole = models("hermes").create_chat_completion([QUESTION], seed=seed, temperature=1.5, **more)
        calls = whole["choices"][0]["message"]["tool_calls"]
        counts.add(len(calls))
        assert [json.loads(call["function"]["arguments"])["days"] in (1, 2) for call in calls] == [True] * len(calls)
        assert len({call["id"] for call in calls}) == len(calls)
    assert max(counts) > 1


def test_text_is_not_parsed_as_a_call_without_tools_or_with_tool_choice_none(models):
    llm = models("hermes")
    assert "tool_call" not in prompt_of(llm, QUESTION)
    assert "tool_call" not in prompt_of(llm, QUESTION, tools=[WEATHER], tool_choice="none")
    assert "tool_call" in prompt_of(llm, QUESTION, tools=[WEATHER])
    message = llm.create_chat_completion([QUESTION], tools=[WEATHER], max_tokens=3, temperature=0)["choices"][0][
        "message"
    ]
    assert "tool_calls" not in message and isinstance(message["content"], str)


def test_tools_are_described_in_words_if_the_template_lacks_them(models):
    call = {"type": "function", "id": "c", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    text = prompt_of(
        models("generic"), {"role": "system", "content": "Be kind."}, QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"}, tools=[WEATHER],
    )  # fmt: skip
    text = text.replace("▁", " ")
    assert "Be kind.\n\nYou may call functions." in text and '"name": "weather"' in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in text
    assert "<tool_response>\nrain\n</tool_response>" in text


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"tools": "weather"}, "tools is a str"),
        ({"tools": [{"type": "retrieval"}]}, r"tools\[0\] must be"),
        ({"tools": [{"type": "function", "function": {}}]}, "must have a name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "letters, digits"),
        ({"tools": [NOW, NOW]}, "two tools are called 'now'"),
        ({"tools": [NOW] * 129}, "at most 128"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "JSON schema of an object"),
        ({"tools": [NOW], "tool_choice": "always"}, "tool_choice is 'always'"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "name one of now"),
        ({"tool_choice": "required"}, "without tools"),
        ({"tools": [NOW], "parallel_tool_calls": 3}, "parallel_tool_calls"),
        ({"tools": [NOW], "grammar": 'root ::= "a"'}, "no grammar"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused_by_name(models, more, match):
    with pytest.raises(BadInput, match=match):
        models("hermes").create_chat_completion([QUESTION], **more)


@pytest.mark.parametrize(("name", "after"), [("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]"), ("llama3", "")])
def test_strict_arguments_are_enforced_once_the_model_begins_a_call(models, name, after):
    llm = models(name)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    tools = Tools.read({"tools": [strict]})
    form, found = tools.grammar(llm.chat_format.tool_form, llm.tokenizer)
    assert found == after
    if after:
        [(request, _)] = llm.prepare_chat_completion([QUESTION], tools=[strict]).requests
        for token in llm.tokenize("It is Rome."):
            request.grammar.accept(token)
        mask = request.grammar.mask()
        assert all((mask[end // 32] >> (end % 32)) & 1 for end in llm.tokenizer.stop_ids)  # a call is not required
    grammar = llm.chat_format.grammars.grammar(form, after=found)
    begun = {"llama3": '{"name": "weather", "parameters": {"city":"', "mistral": '[TOOL_CALLS]weather[ARGS]{"city":"'}
    text = begun.get(name, 'Well. <tool_call>\n{"name": "weather", "arguments": {"city":"')
    for byte in text.encode():  # the vocabulary has a token for each
        grammar.accept(3 + byte)
    mask = grammar.mask()
    assert {chr(byte) for byte in range(256) if (mask[(3 + byte) // 32] >> ((3 + byte) % 32)) & 1} == {"R", "O"}
    assert Tools.read({"tools": [WEATHER]}).grammar(llm.chat_format.tool_form, llm.tokenizer) is None


HARMONY = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT.replace("assistant:", "<|start|>assistant")
ANALYSIS = "<|channel|>analysis<|message|>Hm. {<}<|end|><|start|>assistant"
TO_WEATHER = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"'


@pytest.fixture(scope="module")
def channels():
    with rwkv_gpu.load(golden("tiny-gpt-oss.gguf"), device="cpu") as llm:
        llm.chat_format = llm.chat_format_of(HARMONY)
        assert llm.chat_format.tool_form.name == "harmony"
        yield llm


def allowed_after(llm, more, text):
    """Returns the texts of the tokens that may follow the beginning of an answer."""
    return set(allowed_tokens(llm, grammar_after(llm, more, text)).values())


def grammar_after(llm, more, text):
    """Returns the grammar of an answer that has begun."""
    asked = {"tools": [WEATHER, NOW], "max_tokens": 200, **more}
    [(request, _)] = llm.prepare_chat_completion([QUESTION], **asked).requests
    for token in llm.tokenize(text, parse=True):
        request.grammar.accept(token)
    return request.grammar


def allowed_tokens(llm, grammar):
    """Returns the texts of the tokens that a grammar allows, by token."""
    ids = allowed_ids(llm, grammar)
    return {token: llm.tokenizer.piece(token, special=True).decode("utf-8", "replace") for token in ids}


def allowed_ids(llm, grammar):
    """Returns the tokens that a grammar allows."""
    return np.flatnonzero(allowed(grammar.mask(), llm.vocab_size)).tolist()


@pytest.mark.parametrize("reasoning", ["", ANALYSIS])
def test_a_required_call_in_channels_is_enforced_with_or_without_reasoning_before_it(channels, reasoning):
    more = {"tool_choice": "required"}
    assert allowed_after(channels, more, reasoning) == {"<|channel|>"}
    assert all(text.startswith(("c", "a")) for text in allowed_after(channels, more, "<|channel|>"))
    cities = allowed_after(channels, more, reasoning + TO_WEATHER)
    assert cities and all("Rome".startswith(text) or "Oslo".startswith(text) for text in cities)
    assert "<|end|>" in allowed_after(channels, more, "<|channel|>analysis<|message|>Hm")
    assert allowed_after(channels, more, reasoning + TO_WEATHER + 'Rome","days":1}') == set()  # it is complete


@pytest.mark.parametrize("reasoning", ["", ANALYSIS.replace("Hm", 'A 5" pipe of 1' + "0" * 30)])
def test_numbers_in_a_required_call_in_channels_are_bounded(channels, reasoning):
    """A model that repeats a digit ends its numbers, whatever its reasoning quotes."""
    parameters = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "measure", "parameters": parameters}}]
    opening = '<|channel|>commentary to=functions.measure<|message|>{"x":'
    grammar, written = grammar_after(channels, {"tools": tools, "tool_choice": "required"}, reasoning + opening), ""
    while tokens := allowed_tokens(channels, grammar):
        token = next(token for text in ("7", "}", *tokens.values()) for token in tokens if tokens[token] == text)
        written += tokens[token]
        grammar.accept(token)
    assert written == "7" * 24 + "}"


def test_a_named_function_is_called_in_channels(channels):
    choice = {"tool_choice": {"type": "function", "function": {"name": "now"}}}
    after = allowed_after(channels, choice, "<|channel|>commentary to=functions.")
    assert after and all("now".startswith(text) for text in after)


def test_a_required_call_in_channels_is_read(channels):
    ids = {channels.tokenize(text)[0] for text in ("analysis", "a", "an", "ana")}
    more = {"tools": [WEATHER, NOW], "tool_choice": "required", "logit_bias": dict.fromkeys(ids, -1000.0)}
    for seed in range(3):
        [choice] = channels.create_chat_completion([QUESTION], seed=seed, max_tokens=200, **more)["choices"]
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"]["name"] in ("weather", "now")
        json.loads(call["function"]["arguments"])


def test_strict_arguments_in_channels_are_enforced_once_the_model_calls(channels):
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    tools = {"tools": [strict]}
    assert len(allowed_after(channels, tools, "<|channel|>final<|message|>It")) > 100  # all
    cities = allowed_after(channels, tools, ANALYSIS + TO_WEATHER)
    assert cities and all("Rome".startswith(text) or "Oslo".startswith(text) for text in cities)
