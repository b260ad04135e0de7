"""Chat templates of real models, as transformers renders them: each conversation in each form that clients send."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.conform import SHORT
from rwkv_gpu.text.messages import joined
from rwkv_gpu.text.template import ChatTemplate
from tests.text import template_matrix as matrix

TEMPLATES, PROMPTS = matrix.load()
CASES = {name: (messages, tools, opened) for name, messages, tools, opened in matrix.cases()}
FORMS = ("text", "objects")
LOOPS = ("silent", "said", "reasoning", "parallel")
# Templates that cannot show some conversations at all. transformers and llama.cpp refuse them too.
ONE_CALL = {name for name in TEMPLATES if name.startswith("meta-llama")}
WITHOUT_TOOLS = {"google-gemma-2-2b-it"}
# Templates that leave calls out of the history, as recorded
WITHOUT_CALLS = {
    name
    for name, prompts in PROMPTS.items()
    if not any("Köln" in (prompts[f"silent, {form}"] or "Köln").rpartition("Weather in Köln?")[2] for form in FORMS)
}
# transformers escapes the tools of this template as HTML, which llama.cpp and the model's own code do not.
ESCAPED = {"meetkai-functionary-medium-v3.1"}
# These show reasoning only as a part of content, or under another name. transformers leaves it out; llama.cpp does not.
OTHER_REASONING = {"mistralai-Ministral-3-14B-Reasoning-2512", "upstage-Solar-Open-100B"}


@pytest.fixture(scope="module")
def templates() -> Mapping[str, ChatTemplate]:
    return {
        name: ChatTemplate(source, bos=matrix.BOS, eos=matrix.EOS, clock=lambda: matrix.NOW)
        for name, source in TEMPLATES.items()
    }


def rendered(template: ChatTemplate, case: str, messages: list[dict[str, Any]] | None = None) -> str:
    own, tools, opened = CASES[case]
    return template.render(messages or own, tools=tools, add_generation_prompt=opened)


def expected(name: str, case: str) -> str | None:
    """The prompt of transformers, without its escapes of HTML."""
    prompt = PROMPTS[name][case]
    if prompt is not None and name in ESCAPED:
        return prompt.replace("&#34;", '"')
    return prompt


def shows_call(prompt: str) -> bool:
    after = prompt.rpartition("Weather in Köln?")[2]
    return "Köln" in after or "K\\u00f6ln" in after


def loop(name: str, case: str) -> str | None:
    """The prompt of transformers with arguments in the form that makes them JSON."""
    objects = expected(name, f"{case}, objects")
    return expected(name, f"{case}, text") if objects is None or "'city': 'Köln'" in objects else objects


def test_every_template_of_llama_cpp_is_recorded():
    assert len(TEMPLATES) == 70
    assert all(set(prompts) == set(CASES) for prompts in PROMPTS.values())


def test_older_templates_render_a_conversation_as_transformers_does():
    messages, _, opened = CASES["plain"]
    for name, (source, prompt) in matrix.load_older().items():
        template = ChatTemplate(source, bos=matrix.BOS, eos=matrix.EOS)
        assert template.render(messages, add_generation_prompt=opened) == prompt, name


@pytest.mark.parametrize("case", ["plain", "system", "tools", "reasoning", "trailing"])
def test_prompts_without_calls_equal_those_of_transformers(templates, case):
    for name, template in templates.items():
        prompt = expected(name, case)
        if prompt is not None and not (case == "reasoning" and name in OTHER_REASONING):
            assert rendered(template, case) == prompt, name


@pytest.mark.parametrize("case", LOOPS)
def test_prompts_with_calls_equal_those_of_transformers_in_either_form_of_arguments(templates, case):
    for name, template in templates.items():
        prompt = loop(name, case)
        if name in WITHOUT_TOOLS or (case == "parallel" and name in ONE_CALL):
            with pytest.raises(BadInput, match="refuses"):
                rendered(template, f"{case}, text")
            continue
        text, objects = (rendered(template, f"{case}, {form}") for form in ("text", "objects"))
        assert text == objects, name
        if prompt is not None and not (case == "reasoning" and name in OTHER_REASONING):
            assert text == prompt, name
        assert shows_call(text) or name in WITHOUT_CALLS or case == "said", name


def test_null_content_next_to_calls_adds_no_text(templates):
    for form in ("text", "objects"):
        messages, _, _ = CASES[f"silent, {form}"]
        null = [{**one, "content": None} if one.get("tool_calls") else one for one in messages]
        absent = [{key: value for key, value in one.items() if value is not None} for one in null]
        for name, template in templates.items():
            if name not in WITHOUT_TOOLS:
                prompt = rendered(template, f"silent, {form}")
                assert rendered(template, f"silent, {form}", null) == prompt, name
                assert rendered(template, f"silent, {form}", absent) == prompt, name


def test_templates_that_transformers_cannot_run_show_the_conversation(templates):
    seen = 0
    for name, template in templates.items():
        for case in ("plain", "system", "tools"):
            if PROMPTS[name][case] is None and name not in WITHOUT_TOOLS:
                text, seen = rendered(template, case), seen + 1
                messages, tools, _ = CASES[case]
                assert all(message["content"] in text for message in messages), name
                assert tools is None or '"weather"' in text, name
    assert seen > 5


def test_a_system_message_is_joined_to_the_question_if_there_is_no_system_role(templates):
    for name in WITHOUT_TOOLS:
        one = [{"role": "user", "content": "Be brief.\nWeather in Köln?"}]
        assert rendered(templates[name], "system") == rendered(templates[name], "system", one)


def test_parts_reach_templates_that_show_them_and_are_lines_elsewhere(templates):
    whole = 0
    for name, template in templates.items():
        prompt = PROMPTS[name]["parts"]
        raw = prompt is None or "Köln" not in prompt or "'text'" in prompt or '"text": ' in prompt
        lines = [{"role": "user", "content": joined(matrix.PARTS)}]
        assert rendered(template, "parts") == (rendered(template, "parts", lines) if raw else prompt), name
        whole += not raw
    assert whole > 20


def test_reasoning_in_parts_or_under_another_name_is_shown(templates):
    ministral, solar = sorted(OTHER_REASONING)
    assert "[THINK]Look it up.[/THINK]Rain" in rendered(templates[ministral], "reasoning")
    assert "[THINK]Look it up.[/THINK][TOOL_CALLS]" in rendered(templates[ministral], "reasoning, text")
    assert "<|think|>Look it up.<|end|>" in rendered(templates[solar], "reasoning, text")


@pytest.mark.parametrize("field", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_has_three_names(templates, field):
    messages, _, _ = CASES["reasoning, text"]
    renamed = [
        {(field if key == "reasoning_content" else key): value for key, value in one.items()} for one in messages
    ]
    for name, template in templates.items():
        if name not in WITHOUT_TOOLS:
            assert rendered(template, "reasoning, text", renamed) == rendered(template, "reasoning, text"), name


def test_reasoning_and_text_next_to_calls_are_shown_as_far_as_a_template_can(templates):
    """gpt-oss refuses both together; llama.cpp leaves out the text."""
    messages, _, _ = CASES["reasoning, text"]
    both = [{**one, "content": "I look."} if one.get("tool_calls") else one for one in messages]
    for name, template in templates.items():
        if name not in WITHOUT_TOOLS:
            text = rendered(template, "reasoning, text", both)
            silent = "I look." not in rendered(template, "said, text") and name not in OTHER_REASONING
            assert "I look." in text or "Look it up." in text or silent, name


def test_ids_of_any_client_fit_templates_that_take_short_ids(templates):
    messages, _, _ = CASES["parallel, text"]
    ids = {"abcdefgh0": "call_x3b1Uab7zq9PpVvWmM2sKd81", "abcdefgh1": "toolu_01"}
    short = 0
    for name, template in templates.items():
        if name in WITHOUT_TOOLS | ONE_CALL:
            continue
        renamed = [
            {**one, "tool_calls": [{**call, "id": ids[call["id"]]} for call in one["tool_calls"]]}
            if one.get("tool_calls")
            else {**one, **({"tool_call_id": ids[one["tool_call_id"]]} if one["role"] == "tool" else {})}
            for one in messages
        ]
        text = rendered(template, "parallel, text", renamed)
        assert shows_call(text) or name in WITHOUT_CALLS, name
        short += template.can.short_ids
    assert short >= 2
    assert SHORT.fullmatch("abcdefgh0")


def test_calls_need_neither_ids_nor_types_nor_arguments(templates):
    """Ollama's API has no ids. Results are those of the calls in their order."""
    messages, _, _ = CASES["parallel, text"]
    bare = [{key: value for key, value in one.items() if key != "tool_call_id"} for one in messages]
    bare[1] = {**bare[1], "content": None, "tool_calls": [{"function": c["function"]} for c in bare[1]["tool_calls"]]}
    empty = [{**one, "tool_calls": [{"function": {"name": "weather", "arguments": None}}]} for one in bare[1:2]]
    for name, template in templates.items():
        if name not in WITHOUT_TOOLS | ONE_CALL:
            assert shows_call(rendered(template, "parallel, text", bare)) or name in WITHOUT_CALLS, name
            text = rendered(template, "parallel, text", [bare[0], *empty, bare[2]])
            assert "weather" in text or name in WITHOUT_CALLS, name


def test_incomplete_arguments_of_a_call_are_shown_or_refused_with_their_position(templates):
    cut = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Kö'}}
    asking = {"role": "assistant", "content": None, "tool_calls": [cut]}
    answers = {}
    for name, template in templates.items():
        with contextlib.suppress(BadInput):
            answers[name] = rendered(template, "silent, text", [matrix.QUESTION, asking])
    assert len(answers) > 30 and "Kö" in answers["Qwen-Qwen2.5-7B-Instruct"]
    with pytest.raises(BadInput, match=r"messages\[1\].tool_calls\[0\] has the arguments .* only a JSON object"):
        rendered(templates["Qwen3-Coder"], "silent, text", [matrix.QUESTION, asking])


def test_two_system_messages_are_both_shown(templates):
    """Clients of the Responses API send instructions and a developer message."""
    for name, template in templates.items():
        both = [matrix.SYSTEM, {"role": "developer", "content": "Be kind."}, matrix.QUESTION]
        text, one = rendered(template, "system", both), rendered(template, "system")
        assert ("Be brief." in text and "Be kind." in text) or "Be brief." not in one, name


def test_tools_without_descriptions_are_shown(templates):
    functions: list[dict[str, Any]] = [
        {"name": "weather"},
        {"name": "weather", "parameters": {"type": "object", "properties": {}}},
        {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
    ]
    for name, template in templates.items():
        if name not in WITHOUT_TOOLS and template.knows_tools:
            for function in functions:
                tools = [{"type": "function", "function": function}]
                assert "weather" in template.render([matrix.QUESTION], tools=tools), (name, tools)


def test_templates_show_the_current_date(templates):
    """Dates are today's in every template that shows one."""
    dated = [name for name, source in TEMPLATES.items() if "date_string" in source or "strftime_now" in source]
    assert len(dated) >= 8
    for name in dated:
        shown = rendered(templates[name], "tools") + rendered(templates[name], "plain")
        wanted = ("28 Nov 2026", "2026-11-28", "November 28, 2026")
        assert "26 Jul 2024" not in shown and any(date in shown for date in wanted), name
