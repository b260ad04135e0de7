"""Chat templates of Modelfiles, in Go, are converted to jinja2. Features without an equivalent are refused by name."""

import contextlib
import json

import pytest

from rwkv_gpu.errors import BadTemplate
from rwkv_gpu.text.go_template import DEEPEST, MOST, as_jinja
from rwkv_gpu.text.template import ChatTemplate

TURN = """{{ if .System }}<|system|>
{{ .System }}<|end|>
{{ end }}{{ if .Prompt }}<|user|>
{{ .Prompt }}<|end|>
{{ end }}<|assistant|>
{{ .Response }}<|end|>
"""
CHAT = """{{- if or .System .Tools }}<|head|>
{{- if .System }}
{{ .System }}
{{- end }}
{{- if .Tools }} Tools:{{ range $.Tools }} {{ json .Function.Name }}{{ end }}
{{- end }}<|end|>
{{- end }}
{{- /* the messages */ -}}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" "tool" }}<|user|>{{ $i }} {{ .Content }}<|end|>
{{- else if and (eq .Role "assistant") .ToolCalls -}}
<|assistant|>{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}{{ end }}
{{- if not $last }}<|end|>{{ end -}}
{{- else if ne .Role "system" }}<|assistant|>{{ with .Content }}[{{ . }}]{{ else }}nothing{{ end }}
{{- if not $last }}<|end|>{{ end }}
{{- end }}
{{- if and $last (ne .Role "assistant") }}<|assistant|>{{ end }}
{{- end }}"""
TALK = [
    {"role": "system", "content": 'Say "{{ hi }}" in 日本.'},
    {"role": "user", "content": "One\n'two' 🙂"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "{% And %}?"},
]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def rendered(source, messages, **more):
    return ChatTemplate(as_jinja(source)).render(messages, **more)


def test_a_go_template_for_one_turn_renders_every_turn():
    assert rendered(TURN, TALK) == (
        "<|system|>\nSay \"{{ hi }}\" in 日本.<|end|>\n<|user|>\nOne\n'two' 🙂<|end|>\n<|assistant|>\n1<|end|>\n"
        "<|user|>\n{% And %}?<|end|>\n<|assistant|>\n"
    )
    assert rendered(TURN, TALK[:3], add_generation_prompt=False).endswith("<|assistant|>\n1<|end|>\n")
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert rendered("{{ .Prompt }}:", two) == "a\n\nb:"  # the answer follows
    assert rendered("[{{ .Prompt }}]", TALK[1:3], add_generation_prompt=False) == "[One\n'two' 🙂]1"
    assert "MARK x" in rendered(TURN, [{"role": "user", "content": "MARK x"}])
    template = ChatTemplate(as_jinja(TURN))
    assert template.end_of_turn() == "<|end|>\n"


def test_a_template_over_messages_renders_loops_variables_and_tools():
    assert rendered(CHAT, TALK) == (
        "<|head|>\nSay \"{{ hi }}\" in 日本.<|end|><|user|>1 One\n'two' 🙂<|end|><|assistant|>[1]<|end|>"
        "<|user|>3 {% And %}?<|end|><|assistant|>"
    )
    called = [TALK[1], {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "ok"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    text = rendered(CHAT, called, tools=tools)
    assert text.startswith('<|head|> Tools: "f"<|end|><|user|>0 One')
    assert '<|assistant|>{"name": "f", "arguments": {"x": 1}}<|end|><|user|>2 ok<|end|><|assistant|>' in text
    assert ChatTemplate(as_jinja(CHAT)).knows_tools


def test_tools_and_their_parameters_are_shown_as_json():
    function = {"name": "f", "parameters": {"type": "object", "properties": {}, "required": []}, "description": "d"}
    tool = {"type": "function", "function": function}
    source = "{{ range .Tools }}{{ . }}|{{ .Function.Parameters }}|{{ .Function.Name }}{{ end }}{{ len .Messages }}"
    parts = json.dumps(tool), json.dumps(function["parameters"]), "f4"
    assert rendered(source, TALK, tools=[tool]) == "|".join(parts)


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ('{{ if eq "a" "b" "a" }}y{{ end }}', "y"),
        ("{{ if and 1 (not false) }}y{{ else }}n{{ end }}", "y"),
        ("{{ if lt (len .Messages) 3 }}y{{ else if ge 1 2 }}n{{ end }}", "n"[:0]),
        ('{{ $x := "a" }}{{ range .Messages }}{{ $x = .Role }}{{ end }}{{ $x }}', "user"),
        ('{{ $x := "a" }}{{ if true }}{{ $x := "b" }}{{ end }}{{ $x }}', "a"),
        ("{{ range $m := .Messages }}{{ $m.Role }},{{ end }}", "system,user,assistant,user,"),
        ("{{ range .Messages }}{{ if eq .Role `user` }}{{ break }}{{ end }}{{ .Role }}{{ end }}", "system"),
        ("{{ (index .Messages 2).Content | len }}", "1"),
        ("a  {{- 1 -}}  b{{/* no */}}", "a1b"),
        ("a {{-1}}{{/* }} */}} b", "a -1 b"),
        ("{{ len (slice .Messages 1 3) }}", "2"),
        ('{{ "\\u0041\\n\\"" }}{{ `\\n` }}', 'A\n"\\n'),
        ("{{ if .IsThinkSet }}{{ .Think }}{{ end }}.", "."),
        ("{{ range .Messages }}{{ range $.Tools }}x{{ else }}-{{ end }}{{ end }}", "----"),
        (
            "{{ range .Messages }}{{ with .ToolCalls }}x{{ else }}{{ .Role }},{{ end }}{{ end }}",
            "system,user,assistant,user,",
        ),
        ("{{ with .System }}{{ with $.Messages }}{{ end }}{{ . }}{{ end }}", TALK[0]["content"]),
        ("{{ with $x := .System }}{{ $x }}{{ end }}", TALK[0]["content"]),
        (
            '{{ $x := "a" }}{{ range .Messages }}{{ $x := .Role }}{{ if $x }}{{ $x := 1 }}{{ end }}{{ end }}{{ $x }}',
            "a",
        ),
    ],
)
def test_expressions_have_the_same_value_as_in_go(expression, shown):
    assert rendered(expression + "{{ range .Messages }}{{ end }}", TALK) == shown


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('{{ template "a" }}', "template"),
        ("{{ define `x` }}{{ end }}", "define"),
        ("{{ printf `%s` .Prompt }}", "printf"),
        ("{{ .First }}", ".First"),
        ("{{ if .Prompt }}", "{{ end }}"),
        ("{{ end }}", "{{ end }}"),
        ("{{ else }}", "{{ if }}"),
        ("{{ .Prompt", "not closed"),
        ("{{ $x }}", "$x"),
        ("{{ $x = 1 }}", "$x"),
        ("{{ len }}", "len has 0"),
        ("{{ (.Prompt }}", "parenthesis"),
        ("{{ .Prompt ~ 1 }}", "~"),
        ("{{ if }}x{{ end }}", "no value"),
        ("{{ range $k, $v := .System }}{{ end }}", "range"),
        ("{{ with .System }}a{{ else if 1 }}b{{ end }}", "else"),
        ("{{ if 1 }}a{{ else range }}b{{ end }}", "else"),
        ("{{ .Prompt | .System }}", "|"),
        ("{{" + "(" * 100 + "1" + ")" * 100 + "}}", "nested"),
        ("{{ if 1 }}" * 100 + "{{ end }}" * 100, "nested"),
        ("x" * (MOST + 1), "characters"),
        ("{{ .Messages.__class__ }}{{ os.system }}", ".system"),
        ('{{ "a" + `}} {% set x = 1 %}` }}', "+"),
    ],
)
def test_a_go_template_without_a_translation_is_refused_with_the_reason(source, named):
    with pytest.raises(BadTemplate) as refused:
        as_jinja(source)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("most", "source"),
    [
        (MOST, lambda n: "x" * n),
        (DEEPEST, lambda n: "{{" + "(" * n + "1" + ")" * n + "}}"),
        (DEEPEST, lambda n: "{{ if 1 }}" * n + "{{ end }}" * n),
    ],
)
def test_a_template_reaches_its_limits_and_does_not_exceed_them(most, source):
    as_jinja(source(most))
    with pytest.raises(BadTemplate):
        as_jinja(source(most + 1))


def test_hostile_templates_are_translated_or_refused_in_bounded_time():
    """Quadratic work on these texts would take minutes."""
    for piece in ("{{", "{{- ", '{{"', "{{/*", "{{`", "{{ if 1 }}{{ end }}", "}}", '{{ "\\'):
        with contextlib.suppress(BadTemplate):
            as_jinja(piece * (MOST // len(piece)))
