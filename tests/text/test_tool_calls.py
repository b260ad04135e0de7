"""Tool calls in each family's format are parsed from text in any pieces."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.text.thinking import THINK, marks_of
from rwkv_gpu.text.tool_calls import FORMS, GENERIC, Call, ToolParser, cut_calls, form_of

BY_NAME = {form.name: form for _, form in FORMS} | {"generic": GENERIC}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
SCHEMAS = {"weather": WEATHER, "now": {"type": "object"}}
ROME = {"city": "Rome", "days": 2}
MARK = 42  # characters of the longest mark between a name and its arguments
# By form: text before a call, the text of one call, that of two, and the content of one.
WRITTEN = {
    "rwkv": (
        '```json\n{"name":"weather","arguments":{"city":"Rome","days":2}}\n```',
        '\n```json\n{"name":"now","arguments":{}}\n```',
    ),
    "hermes": (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>',
        '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    "generic": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome", "days": 2}}</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    "qwen3-coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
        "\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    "seed": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Rome</parameter>\n<parameter=days>2</parameter>\n"
        "</function>\n</seed:tool_call>",
        "\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    ),
    "glm": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
        "\n<tool_call>now\n</tool_call>",
    ),
    "mistral": (
        '[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}',
        "[TOOL_CALLS]now[ARGS]{}",
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "llama3": (
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome", "days": 2}}',
        '; {"name": "now", "parameters": {}}',
    ),
    "gemma4": (
        '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>',
        "<|tool_call>call:now{}<tool_call|>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome", "days": 2}<|tool_call_end|>',
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    **{
        name: (
            f'<{mark}>\n<{head}invoke name="weather">\n<{head}parameter name="city"{kind}>Rome</{head}parameter>\n'
            f'<{head}parameter name="days">2</{head}parameter>\n</{head}invoke>\n',
            f'<{head}invoke name="now">\n</{head}invoke>\n</{mark}>',
        )
        for name, mark, head, kind in (
            ("minimax", "minimax:tool_call", "", ""),
            ("muse", "atem:function_calls", "atem:", ""),
            ("dsml", "｜DSML｜function_calls", "｜DSML｜", ' string="true"'),
        )
    },
    "minimax-m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Rome]<]minimax[>[</city>'
        "]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n",
        ']<]minimax[>[<invoke name="now">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
    ),
    "cohere": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        '{"city": "Rome", "days": 2}},',
        '\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
    ),
    "lfm2": ("<|tool_call_start|>[weather(city='Rome', days=2), ", "now()]<|tool_call_end|>"),
    "jamba": (
        '<tool_calls>[\n    {"name": "weather", "arguments": {"city": "Rome", "days": 2}},',
        '\n    {"name": "now", "arguments": {}}\n]</tool_calls>',
    ),
    "minimax-m1": (
        '<tool_calls>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}',
        '\n{"name": "now", "arguments": {}}\n</tool_calls>',
    ),
    "nemotron": (
        '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, ',
        '{"name": "now", "arguments": {}}]</TOOLCALL>',
    ),
    "granite": (
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, ',
        '{"name": "now", "arguments": {}}]',
    ),
    "gigachat": (
        '<|function_call|>{"name": "weather", "arguments": {"city": "Rome", "days": 2}}',
        '\n{"name": "now", "arguments": {}}',
    ),
    "harmony": (
        '<|tool|>functions.weather<|message|>{"city": "Rome", "days": 2}<|call|>',
        "<|tool|>functions.now<|message|>{}<|call|>",
    ),
}


def read(form, pieces):
    parser = ToolParser(form, SCHEMAS)
    found = [one for piece in pieces for one in parser.feed(piece)] + parser.flush()
    text = "".join(one for one in found if isinstance(one, str))
    return text, [one for one in found if isinstance(one, Call)]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_that_is_cut_off_has_its_name_and_the_beginning_of_its_arguments(name):
    """At every length: no markup is shown, no written name is lost, and no call looks complete before it is."""
    one, other = WRITTEN[name]
    whole = one + other
    named = [whole.index(tool) + len(tool) for tool in ("weather", "now")]
    for end in range(1, len(whole)):
        parser = ToolParser(BY_NAME[name], SCHEMAS)
        found = parser.feed("Look.\n\n" + whole[:end]) + parser.flush(cut=True)
        text = "".join(piece for piece in found if isinstance(piece, str))
        calls = [piece for piece in found if isinstance(piece, Call)]
        bare = name == "llama3" and not calls
        assert text == "Look." or bare, (end, text)
        assert [call.name for call in calls] == ["weather", "now"][: len(calls)], (end, calls)
        later = MARK if name != "lfm2" else len(whole)  # whose list of calls is parsed as a whole
        assert len(calls) >= (end > named[0] + MARK) + (end > named[1] + later), (end, calls)
        for call, expected in zip(calls, (ROME, {}), strict=False):
            try:
                assert json.loads(call.arguments) == expected
            except ValueError:
                assert not set("<>|`]｜") & set(call.arguments), (end, call)
                known = re.sub("[a-z]*$", "", call.arguments.replace(" ", ""))  # Gemma's keys have no quotes
                assert json.dumps(expected).replace(" ", "")[:-1].startswith(known), (end, call)


@pytest.mark.parametrize(
    "part", ["a", "a.", "call:", "<arg_key>", "<parameter=a>", '<parameter name="a">', "functions.a:1"]
)
def test_a_very_long_call_that_is_cut_off_is_read_in_linear_time(part):
    """The time once grew with the square of the length: such a text would take an hour."""
    for head in ("", "<function=weather>", 'invoke name="weather"', '{"name": "weather", "arguments": {"a": "'):
        calls = cut_calls(head + part * (100_000 // len(part)), [], SCHEMAS)
        assert [call.name for call in calls if call.name in SCHEMAS] == ["weather"] * bool(head)


def test_json_inside_an_answer_is_not_read_as_a_call_without_marks():
    call = '{"name": "now", "arguments": {}}'
    for before in ("", "Look: "):
        text, calls = read(BY_NAME["llama3"], [before, call] if before else [call])
        assert (text, [one.name for one in calls]) == ((before + call, []) if before else ("", ["now"]))


def test_a_truncated_call_has_its_name_and_the_arguments_so_far():
    parser = ToolParser(BY_NAME["hermes"], SCHEMAS)
    found = parser.feed('<tool_call>\n{"name": "weather", "arguments": {"city": "Ro') + parser.flush(cut=True)
    assert found == [Call("weather", '{"city": "Ro')]


def test_every_format_of_calls_is_tested():
    assert WRITTEN.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_calls_are_read_from_pieces_of_any_size(name):
    one, other = WRITTEN[name]
    text = f"I look it up.\n\n{one}{other}"
    for size in (1, 2, 3, 7, len(text)):
        shown, calls = read(BY_NAME[name], [text[at : at + size] for at in range(0, len(text), size)])
        assert shown == "I look it up."
        assert [call.name for call in calls] == ["weather", "now"]
        assert [json.loads(call.arguments) for call in calls] == [ROME, {}]


@pytest.mark.parametrize("fenced", ['{"name": "martian", "arguments": {}}', '{"a": 1}', "[1, 2]", "oh {"])
def test_fenced_json_without_a_call_stays_unchanged(fenced):
    text = f"Like this:\n\n```json\n{fenced}\n```\n\nSo.\n\n```python\n1\n```"
    for size in (1, 3, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(BY_NAME["rwkv"], pieces) == (text, [])


@pytest.mark.parametrize("name", WRITTEN)
def test_text_without_calls_stays_as_it_is(name):
    text = "a < b, [x] and {y}: <tool, [TOOL, <｜tool"
    assert read(BY_NAME[name], text) == (text, [])


@pytest.mark.parametrize("name", ["hermes", "generic", "deepseek", "mistral"])
def test_text_that_is_not_a_call_stays_text(name):
    form = BY_NAME[name]
    text = f"see {form.opening[0]}not a call{form.closing} there"
    shown, calls = read(form, text)
    assert not calls and "not a call" in shown


def test_a_list_of_calls_and_older_forms_are_read():
    calls = read(BY_NAME["mistral"], ['[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]'])[1]
    assert [json.loads(call.arguments) for call in calls] == [ROME]
    assert (
        read(BY_NAME["llama3"], ['{"name": "weather", "parameters": {"city": "Rome", "days": 2}}'])[1][0].name
        == "weather"
    )
    assert read(BY_NAME["llama3"], ['{"an": "object"}']) == ('{"an": "object"}', [])


def test_elements_of_minimax_m3_become_lists_and_objects():
    """A value may contain angle brackets, because marks follow a namespace token."""
    text = (
        '<tool_call>\n]<<invoke name="plan">]<<stops>]<<item>]<<city>Rome]<</city>]<<days>2]<</days>]<</item>]<<item>'
        "]<<city>7]<</city>]<</item>]<</stops>]<<note>a <b> c]<</note>]<</invoke>\n]<</tool_call>"
    ).replace("]<<", "]<]minimax[>[<")
    items = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    schemas = {"plan": {"properties": {"stops": {"type": "array", "items": items}, "note": {"type": "string"}}}}
    parser = ToolParser(BY_NAME["minimax-m3"], schemas)
    [call] = [one for one in parser.feed(f"]<]minimax[>[{text}") + parser.flush() if isinstance(one, Call)]
    stops = [{"city": "Rome", "days": 2}, {"city": "7"}]
    assert json.loads(call.arguments) == {"stops": stops, "note": "a <b> c"}


def test_calls_of_mistral_have_ids_or_none():
    """Mistral Small 3.2 writes the id of a call between its name and its arguments."""
    first, second = (
        '[TOOL_CALLS]weather[CALL_ID]Rs4Fi9pQ1[ARGS]{"city": "Rome"}',
        "[TOOL_CALLS]now[CALL_ID]000000000[ARGS]{}",
    )
    calls = read(BY_NAME["mistral"], [first + second])[1]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"city": "Rome"}), ("now", {})]


def test_arguments_in_other_notations_are_read_as_json():
    nested = {"a": [1, "x: {y}", None], "b": {"c d": True}}
    written = "[now(a=[1, 'x: {y}', None], b={'c d': true})]"
    assert (
        json.loads(read(BY_NAME["lfm2"], [f"<|tool_call_start|>{written}<|tool_call_end|>"])[1][0].arguments) == nested
    )
    text = '<|tool_call>call:now{a:[1,<|"|>x: {y}<|"|>,null],b:{c:true}}<tool_call|>'
    assert json.loads(read(BY_NAME["gemma4"], [text])[1][0].arguments) == {"a": nested["a"], "b": {"c": True}}


@pytest.mark.parametrize(
    "body", ["[now(1)]", "[now(a=open('x'))]", "now(", "(" * 500, "[now(a=b'x')]", "2 + 2", "[f()()]"]
)
def test_arguments_that_are_not_literals_are_not_a_call(body):
    shown, calls = read(BY_NAME["lfm2"], [f"<|tool_call_start|>{body}<|tool_call_end|>"])
    assert not calls and body in shown


def test_values_get_the_types_of_their_schema():
    text = WRITTEN["glm"][0].replace("Rome", "10")
    [call] = read(BY_NAME["glm"], [text])[1]
    assert json.loads(call.arguments) == {"city": "10", "days": 2}


def test_a_template_reveals_its_format_of_tool_calls():
    for mark, form in FORMS:
        assert form_of(f"{{% if tools %}}{mark}{{% endif %}}") is form
    assert form_of("plain") is GENERIC


def test_text_for_a_tool_goes_to_the_reader_of_calls():
    splitter = marks_of("<|channel|>").splitter("<|start|>assistant", tools=True)
    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Rome", "days": 2}<|call|>'
    )
    parts = [part for letter in text for part in splitter.feed(letter)] + splitter.flush()
    assert "".join(part.text for part in parts if part.thinking) == "Think."
    shown, [call] = read(BY_NAME["harmony"], ["".join(part.text for part in parts if not part.thinking)])
    assert (shown, call.name, json.loads(call.arguments)) == ("", "weather", ROME)
    assert THINK.splitter("", tools=True).feed("x")


@given(st.sampled_from(sorted(WRITTEN)), st.text(alphabet='<>[]{}"｜tool_call/ \nTOL:|', max_size=60))
def test_no_text_breaks_a_reader_or_depends_on_its_pieces(name, text):
    form = BY_NAME[name]
    assert read(form, [text]) == read(form, text)
