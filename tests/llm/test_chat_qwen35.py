"""Qwen3.5's template opens the reasoning block itself, and writes an empty block without reasoning."""

from tests.llm.test_chat_format import Q, chat_format, completion

TEMPLATE = """\
{%- for m in messages -%}
{%- set text = m.content.split('</think>')[-1].lstrip('\\n') -%}
{{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '<think>\\n' -}}
{%- endif -%}
"""


def test_thoughts_begin_with_the_answer_unless_they_are_off():
    mine = chat_format("tiny-qwen35.gguf", TEMPLATE)
    assert mine.can_think
    texts = {think: mine.prompt([Q.for_template()], think=think).transcript.text for think in (None, True, False)}
    assert texts[None] == texts[True]
    assert texts[True].endswith(b"<|im_start|>assistant\n<think>\n")
    assert texts[False].endswith(b"<think>\n\n</think>\n\n")


def test_an_answer_ends_with_its_turn():
    mine = chat_format("tiny-qwen35.gguf", TEMPLATE)
    assert mine.stop_ids == set(mine.tokenizer.encode("<|im_end|>", parse=True))


def test_a_second_question_does_not_repeat_the_thoughts():
    mine = chat_format("tiny-qwen35.gguf", TEMPLATE)
    first = mine.prompt([Q.for_template()])
    message, transcript = first.answer(mine.tokenizer, completion(mine, "So.\n</think>\n\nYes."), None)
    second = mine.prompt([m.for_template() for m in (Q, message, Q)], [transcript])
    text = second.transcript.text
    assert b"So." not in text and b"assistant\nYes.<|im_end|>\n" in text
    assert text.endswith(b"<think>\n")
