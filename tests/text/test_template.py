"""Prompts from messages, by the files' own templates, the built-in ones and Hugging Face's extensions."""

import warnings
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.errors import BadInput, BadTemplate
from rwkv_gpu.text.builtin_templates import BUILT_IN
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.text.vocabularies import golden_metadata

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi\n\n\nyou \r\n\r\n!"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYo."},
    {"role": "user", "content": "Bye"},
]
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo."},
    {"role": "user", "content": "Bye"},
]


def render(source, messages=PLAIN, **options):
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages, **options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "llama-bpe-small-Q4_K_M.gguf",
            "{bos}<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYo.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "qwen3-small-Q4_K_M.gguf",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYo.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "rwkv7-mini-F16.gguf",
            "{bos}System: Be brief.\n\nUser: Hi\n\nAssistant: Yo.\n\nUser: Bye\n\nAssistant:",
        ),
        # It has no template, but a vocabulary of RWKV's.
        (
            "rwkv7-trained-0.8M-F32.gguf",
            "System: Be brief.\n\nUser: Hi\n\nAssistant: Yo.\n\nUser: Bye\n\nAssistant:",
        ),
    ],
)
def test_templates_of_real_files_render_the_recorded_prompts(name, expected):
    metadata = golden_metadata(name)
    tokens = metadata["tokenizer.ggml.tokens"]
    bos = tokens[load_tokenizer(metadata).bos]
    assert ChatTemplate.from_metadata(metadata).render(PLAIN) == expected.replace("{bos}", bos)


def test_the_rwkv_template_of_files_takes_thinking():
    template = ChatTemplate.from_metadata(golden_metadata("rwkv7-mini-F16.gguf"))
    assert template.render(CHAT, enable_thinking=True).endswith("\n\nAssistant: <think>")
    assert template.render(CHAT, enable_thinking=False).endswith("\n\nAssistant: <think>\n</think>")
    assert "Assistant: Yo.\n\n" in template.render(CHAT)


def test_only_the_rwkv_template_for_models_with_thoughts_opens_them():
    assert render("rwkv-g1", enable_thinking=True).endswith("\n\nAssistant: <think")
    assert render("rwkv-g1", enable_thinking=False).endswith("\n\nAssistant: <think>\n</think")
    assert render("rwkv-g1") == render("rwkv-world") == render("rwkv-world", enable_thinking=True)


G1_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_free_slots",
            "description": "Find free calendar slots",
            "parameters": {"type": "object", "properties": {"date": {"type": "string"}}, "required": ["date"]},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
G1_SYSTEM = """System: Tools:
[
{"name":"find_free_slots","description":"Find free calendar slots","arguments":{"date":{"type":"string"}}},
{"name":"now","description":"","arguments":{}}
]
Return only a JSON function call.

"""


@pytest.mark.parametrize(
    ("effort", "ending"), [(None, ""), ("low", " (think a bit)"), ("medium", " (think)"), ("high", " (think a lot)")]
)
def test_the_prompt_of_rwkv_g1_asks_for_shorter_or_longer_thoughts(effort, ending):
    more = {"reasoning_effort": effort} if effort else {}
    asked = [
        *PLAIN,
        {"role": "assistant", "content": "<think>\nHm.</think>\n\nYo."},
        {"role": "user", "content": "Bye "},
    ]
    prompt = render("rwkv-g1", asked, enable_thinking=True, **more)
    assert prompt.endswith(f"Assistant: Yo.\n\nUser: Bye{ending}\n\nAssistant: <think")
    assert "(think" not in render("rwkv-g1", asked, enable_thinking=False, **more)


def test_rwkv_g1_calls_functions_as_published():
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "JST"}'}}
    chat = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": '{"hour": 9}', "tool_call_id": "1"},
    ]
    turns = 'User: When?\n\nAssistant: ```json\n{"name":"now","arguments":{"zone":"JST"}}\n```\n\n'
    turns += 'User: Function output:\n{"hour": 9}\n\nAssistant:'
    assert render("rwkv-g1", chat, tools=G1_TOOLS) == G1_SYSTEM + turns
    told = render("rwkv-g1", [{"role": "system", "content": "Be\n\nkind."}, *chat], tools=G1_TOOLS)
    assert told == G1_SYSTEM.replace("System: ", "System: Be\nkind.\n") + turns


@pytest.mark.parametrize(
    ("names", "template"),
    [
        ({"name": "Rwkv7 G1j 2.9B"}, "rwkv-g1"),
        ({"name": "rwkv7-g0a3-7.2b-20251029-ctx8192"}, "rwkv-g1"),
        ({"name": "model", "basename": "rwkv7-g1"}, "rwkv-g1"),
        ({"name": "RWKV-x070-World-2.9B-v3"}, "rwkv-world"),
        ({"name": "Big1 RWKV 7G1"}, "rwkv-world"),
        ({}, "rwkv-world"),
    ],
)
@pytest.mark.parametrize("own", [None, "rwkv-world", "{{- 'User: ' + message['content']|trim + '\\n\\n' -}}"])
def test_the_name_of_a_g1_file_chooses_its_template(names, template, own):
    metadata = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a"]}
    metadata |= {f"general.{key}": value for key, value in names.items()}
    metadata |= {"tokenizer.chat_template": own} if own else {}
    unnamed = own if own and "{" in own else BUILT_IN["rwkv-world"].source
    expected = BUILT_IN["rwkv-g1"].source if template == "rwkv-g1" else unnamed
    assert ChatTemplate.from_metadata(metadata).source == expected
    assert ChatTemplate.from_metadata(metadata, name="rwkv-world").source == BUILT_IN["rwkv-world"].source


def test_a_file_without_a_template_or_a_known_vocabulary_is_refused_with_the_names():
    with pytest.raises(BadTemplate, match=r"no chat template.*rwkv-world, .*chatml"):
        ChatTemplate.from_metadata(golden_metadata("llama-spm-small-Q4_0.gguf"))


def test_a_built_in_template_can_be_named_for_any_file():
    template = ChatTemplate.from_metadata(golden_metadata("llama-spm-small-Q4_0.gguf"), name="zephyr")
    assert template.render(PLAIN[1:2]) == "<|user|>\nHi</s>\n<|assistant|>\n"


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("<|im_start|>", "chatml"),
        ("<|start_header_id|>", "llama3"),
        ("<start_of_turn>", "gemma"),
        ("<|start_of_role|>", "granite"),
        ("<|im_sep|>", "phi4"),
        ("[SYSTEM_PROMPT]", "mistral3"),
    ],
)
def test_a_vocabulary_shows_the_template_it_was_made_for(mark, name):
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", mark]}
    assert ChatTemplate.from_metadata(metadata).source == BUILT_IN[name].source


@pytest.mark.parametrize("bare", ["rwkv-world", " rwkv-world\n"])
def test_the_bare_name_of_rwkv_files_is_a_built_in_template(bare):
    assert render(bare, CHAT) == "System: Be brief.\n\nUser: Hi\nyou \n!\n\nAssistant: Yo.\n\nUser: Bye\n\nAssistant:"


@pytest.mark.long
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text("ab \n\r")), min_size=1))
def test_no_rwkv_message_holds_its_own_end(turns):
    prompt = render("rwkv-world", [{"role": role, "content": text} for role, text in turns])
    assert prompt.count("\n\n") == len(turns)
    assert "\n\n\n" not in prompt


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYo.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("llama2", "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yo. </s><s>[INST] Bye [/INST]"),
        ("mistral", "<s>[INST] Be brief.\n\nHi [/INST] Yo.</s>[INST] Bye [/INST]"),
        (
            "zephyr",
            "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nYo.</s>\n<|user|>\nBye</s>\n<|assistant|>\n",
        ),
        (
            "phi3",
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYo.<|end|>\n"
            "<|user|>\nBye<|end|>\n<|assistant|>\n",
        ),
        (
            "gemma",
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo.<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "glm",
            "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|></think>Yo.<|user|>Bye<|assistant|><think>",
        ),
        ("deepseek", "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Yo.</s><｜User｜>Bye<｜Assistant｜>"),
        (
            "phi4",
            "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
            "<|im_start|>assistant<|im_sep|>Yo.<|im_end|><|im_start|>user<|im_sep|>Bye<|im_end|>"
            "<|im_start|>assistant<|im_sep|>",
        ),
        ("mistral3", "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]Yo.</s>[INST]Bye[/INST]"),
    ],
)
def test_built_in_templates_render_the_expected_prompts(name, expected):
    assert render(name) == expected


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_prompt_begins_with_the_same_prompt_less_its_generation_part(name):
    assert render(name).startswith(render(name, add_generation_prompt=False))


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("rwkv-world", "\n\n"),
        ("chatml", "<|im_end|>\n"),
        ("llama3", "<|eot_id|>"),
        ("mistral", "</s>"),
        ("granite", "<|end_of_text|>\n"),
    ],
)
def test_the_end_of_a_turn_is_the_token_after_an_answer(name, end):
    assert ChatTemplate(name, eos="</s>").end_of_turn() == end


def test_a_template_that_shows_no_answer_has_no_end_of_turn():
    assert ChatTemplate("{{ messages[0].content }}").end_of_turn() == ""


@pytest.mark.parametrize("name", BUILT_IN)
def test_calls_of_tools_need_no_content(name):
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [PLAIN[1], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    assert render(name, chat)


DIALECT = {
    "{% if true %}\n a\n{% endif %}\nb": " a\nb",  # trim_blocks and lstrip_blocks
    "  {% if true %}a{% endif %}": "a",
    "{{ {'a': '<é&'} | tojson }}": '{"a": "<é&"}',
    "{{ [1, 2] | tojson(indent=1) }}": "[\n 1,\n 2\n]",
    "{{ strftime_now('%d %b %Y') }}": "02 Jan 2026",
    "{% generation %}a{% endgeneration %}": "a",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}": "01345678",
    "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}": "01",
    "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[0] }}{% endfor %}": "0u1a2u3s",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}": "a2b1",
    "{% for k, v in {'b': 1}.items() %}{{ k }}{{ v }}{% endfor %}": "b1",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | last }}": "Bye",
    "{{ (messages | last).content }}": "Bye",
    "{{ 'a\n\nb'.split('\n\n')[-1].strip() }}": "b",
    "{{ messages[0]['content'] is string and tools is none and x is not defined }}": "True",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}": "4",
    "{% macro m(a, b='c') %}{{ a ~ b }}{% endmacro %}{{ m('x') }}{{ m(1, b=2) }}": "xc12",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}!{% endcall %}": "!",
    "{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}": "123",
    "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}": "A1",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}": "AB",
    "{% with a = 1 %}{{ a }}{% endwith %}": "1",
    "{{ '%s-%03d' % ('a', 7) }}{{ '* %s' % 'b' }}{{ '{:>3}|{}'.format('a', 'b') }}": "a-007* b  a|b",
    "{{ '-' * 3 + 'a' }}{{ 7 // 2 }}{{ -1 }}{{ 2 ** 10 }}": "---a3-11024",
    "{{ ['a', 'b'] + ['c'] }}": "['a', 'b', 'c']",
    "{{ '<' | e }}{{ 'a' | safe }}{{ none | default('d', true) }}": "&lt;ad",
    "{{ messages | groupby('role') | map(attribute='grouper') | list }}": "['assistant', 'system', 'user']",
    "{{ 1.5 | round(method='floor') }}{{ 1.25 | round(1, 'floor') }}": "1.01.2",
    "{{ [1, 2] | join(d='-') }}{{ [1, 2, 3] | batch(linecount=2) | list }}": "1-2[[1, 2], [3]]",
    "{{ [1] | tojson(separators=(',', ':'), ensure_ascii=true) }}{{ 4 is divisibleby(num=2) }}": "[1]True",
    "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}": "<s></s>True",
    "{{ ['a', 'b'] | map('upper') | list }}{{ [3, 1] | sort | first }}{{ [1, 2] | sum }}": "['A', 'B']13",
    "{{ 'x' in ['x'] and 'a' in 'abc' and 3 > 2 }}{{ 1 if false }}": "True",
    "{%- set tool = {'f': {'a': [1, 2]}} %}{{ tool.f.a[1] }}{{ tool.get('g', 'none') }}": "2none",
}


@pytest.mark.parametrize("source", DIALECT)
def test_the_jinja_dialect_equals_that_of_hugging_face(source):
    template = ChatTemplate(source, bos="<s>", eos="</s>", clock=lambda: datetime(2026, 1, 2))
    assert template.render(PLAIN) == DIALECT[source]


def test_tools_and_variables_reach_the_template():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render("{{ tools[0].function.name }}{{ mood }}", tools=tools, mood="!") == "f!"


def test_parts_of_text_are_lines():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"


def test_arguments_that_are_json_text_reach_the_template_as_values():
    calls = [{"function": {"name": "f", "arguments": '{"a": [1]}'}}, {"function": {"name": "g", "arguments": "no"}}]
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    assert render(source, [{"role": "assistant", "tool_calls": calls}]) == '{"a": [1]}"no"'


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("Hi", "at least one message"),
        ({"role": "user", "content": "Hi"}, "at least one message"),
        (["Hi"], r"messages\[0\] is a str"),
        ([{"content": "Hi"}], r"messages\[0\].role is None"),
        (
            [PLAIN[0], {"role": "User", "content": "Hi"}],
            r"messages\[1\].role is 'User'; it must be one of system, user",
        ),
        ([{"role": "user"}], r"messages\[0\].content is None"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content is 3"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"messages\[0\].content\[0\].*must be text"),
        ([{"role": "user", "content": "Hi", "x": object()}], r"messages\[0\].x is a object"),
        ([{"role": "user", "content": "Hi", "x": {1: 2}}], r"messages\[0\].x has the key 1"),
        ([{"role": "assistant", "tool_calls": "f"}], r"messages\[0\].tool_calls must be a list"),
    ],
)
def test_bad_messages_are_refused_with_their_position(messages, message):
    with pytest.raises(BadInput, match=message):
        render("chatml", messages)


def test_messages_inside_themselves_are_refused():
    inner: list[object] = []
    inner.append(inner)
    with pytest.raises(BadInput, match="more than 32 deep"):
        render("chatml", [{"role": "user", "content": "Hi", "x": inner}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "line 2: Expected an expression"),
        ("a\n\n{{ x.y.z }}", "line 3: 'x' is undefined"),
        ("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ m() }}", "line 2: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "line 1: TypeError"),
        ("mixtral", "no built-in chat template 'mixtral'; known: rwkv-world"),
        ("", "no built-in chat template ''"),
    ],
)
def test_errors_name_the_line_and_the_remedy(source, message):
    with pytest.raises(BadTemplate, match=message) as refused:
        render(source)
    assert "chatml" in str(refused.value)


def test_compiling_is_silent():
    with pytest.raises(BadTemplate, match="line 1"), warnings.catch_warnings():
        warnings.simplefilter("error")
        render("{{ 1[1:] }}")


def test_the_error_has_the_message_that_a_template_raises():
    with pytest.raises(BadInput, match="refuses these messages: Roles must alternate"):
        render("{{ raise_exception('Roles must alternate') }}")


def test_a_template_that_is_not_a_string_is_refused():
    with pytest.raises(BadTemplate, match="must be a string, not list"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": [1]})


def test_a_template_that_names_tools_and_leaves_them_out_does_not_know_them():
    """SmolLM3 expects tools in another variable. Templates without one get them as text."""
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert ChatTemplate("{{ tools | tojson if tools }}" + chat).knows_tools
    other = "{{ xml_tools | tojson if xml_tools }}{% set n = tools | length if tools else 0 %}"
    assert not ChatTemplate(other + chat).knows_tools
    assert not ChatTemplate(chat).knows_tools


ALL = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
IF = "{% if add_generation_prompt %}"
OPENINGS = {  # True if the opening of an answer is found
    **dict.fromkeys(BUILT_IN, None),
    f"{ALL}{IF}A:{{% endif %}}": True,
    f"{ALL}{IF}A:{{{{ mood }}}}{{% if mood %}}!{{% endif %}}{{%- endif -%}}": True,
    f"{ALL}{{% if add_generation_prompt and messages %}}A:{{% endif %}}": False,
    f"{ALL}{IF}A:{{% else %}}end{{% endif %}}": False,
    f"{ALL}{IF}A:{{% elif mood %}}end{{% endif %}}": False,
    f"{ALL}{IF}A:{{% endif %}} and more": False,
    f"{IF}B{{% endif %}}{ALL}{IF}A:{{% endif %}}": False,
    f"{{% set add_generation_prompt = false %}}{ALL}{IF}A:{{% endif %}}": False,
    "{{ messages[0].content }}": False,
}


@pytest.mark.parametrize("source", OPENINGS)
def test_one_run_renders_a_prompt_with_and_without_the_opening_of_the_answer(source):
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    hostile = [*PLAIN, {"role": "assistant", "content": "\ue000"}, {"role": "user", "content": IF}]
    for messages in (PLAIN, hostile):
        for mood in ("", "\ue000glad"):
            runs = [template.render(messages, add_generation_prompt=wanted, mood=mood) for wanted in (True, False)]
            assert [*template.prompt(messages, mood=mood)] == runs
    assert OPENINGS[source] in (None, template._sandbox.marks_opening)
