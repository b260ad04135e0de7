"""Reasoning and answers are separated, for any pieces of text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.text.thinking import THINK, Channels, Part, Thinking, marks_of, opens_thinking
from tests.text.cuts import cut, cuts

WORDS = st.sampled_from(["<think>", "</think>", "\n", "a", "<", "</", "think>", "<think"])
TEXTS = st.lists(WORDS, max_size=10).map("".join)


PROMPTS = {False: "Assistant:", True: "Assistant: <think>\n"}


def run(pieces, prompt="", **options):
    stream = Thinking(prompt, **options)
    parts = [part for piece in pieces for part in stream.feed(piece)] + stream.flush()
    joined = []
    for part in parts:
        assert part.text
        if joined and joined[-1].thinking == part.thinking:
            joined[-1] = Part(joined[-1].text + part.text, part.thinking)
        else:
            joined.append(part)
    return [(part.text, part.thinking) for part in joined]


@given(TEXTS, cuts(), st.booleans())
def test_a_text_in_any_pieces_gives_the_same_result(text, places, inside):
    prompt = PROMPTS[inside]
    assert run(cut(text, places), prompt) == run([text], prompt)


@given(TEXTS, st.booleans())
def test_no_letter_outside_the_marks_is_lost(text, inside):
    assert "".join(part for part, _ in run([text], PROMPTS[inside])).count("a") == text.count("a")


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("<think>\nhm\n</think>\n\nYes.", False, [("hm\n", True), ("Yes.", False)]),
        ("hm</think>Yes.", True, [("hm", True), ("Yes.", False)]),
        ("Yes.", False, [("Yes.", False)]),
        ("hm", True, [("hm", True)]),
        ("<think></think>\n\nYes.", False, [("Yes.", False)]),
        ("a <think>b</think> c", False, [("a ", False), ("b", True), (" c", False)]),
        ("a </think> b", False, [("a </think> b", False)]),
        ("<think>a <think> b", False, [("a <think> b", True)]),
        ("1 <thin", False, [("1 <thin", False)]),
    ],
)
def test_reasoning_and_answer_are_separated(text, inside, parts):
    assert run([text], PROMPTS[inside]) == parts


WRAPS = "<response>", "</response>"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>hm</think><response>Yes.</response>", [("hm", True), ("Yes.", False)]),
        ("<think>hm</think>\n\n<response>\nYes.\n</response>\n", [("hm", True), ("Yes.\n\n", False)]),
        ("<think>hm</think>\nYes: </response>.", [("hm", True), ("Yes: </response>.", False)]),
        ("<think>hm</think><response>a <response>b", [("hm", True), ("a <response>b", False)]),
        ("<think>hm</think><resp", [("hm", True), ("<resp", False)]),
        ("<think>hm</think>\n", [("hm", True)]),
        ("XML: <response>b</response>", [("XML: <response>b</response>", False)]),
        (
            "<think>a</think><response>b</response><think>c</think>d",
            [("a", True), ("b", False), ("c", True), ("d", False)],
        ),
    ],
)
def test_marks_around_an_answer_after_reasoning_are_no_part_of_it(text, parts):
    """Tested with Granite 3.3's marks, in any pieces."""
    for pieces in ([text], list(text)):
        assert run(pieces, wraps=WRAPS) == parts


def test_a_template_with_answer_marks_reports_them():
    template = "Write your thoughts between <think></think> and your response between <response></response>."
    assert marks_of(template).wraps == WRAPS
    assert marks_of("{{ '<think>' }} <tool_response>").wraps is None


@pytest.mark.parametrize("thinks", [True, False])
def test_an_answer_of_kimi_k3_is_split_at_its_parts(thinks):
    marks = marks_of("{{ '<|open|>' + tag }}")
    parts = {"think": "hm", "response": "Yes."} if thinks else {"response": "Yes."}
    answer = "".join(f"<|open|>{name}<|sep|>{text}<|close|>{name}<|sep|>" for name, text in parts.items())
    begun = f"<|open|>{next(iter(parts))}<|sep|>"
    splitter = marks.splitter(f'<|open|>message role="assistant"<|sep|>{begun}')
    found = [
        part for letter in f"{answer.removeprefix(begun)}<|close|>message<|sep|>" for part in splitter.feed(letter)
    ]
    assert "".join(part.text for part in found if part.thinking) == ("hm" if thinks else "")
    assert "".join(part.text for part in (*found, *splitter.flush()) if not part.thinking) == "Yes."


def test_line_ends_after_thoughts_that_a_prompt_has_closed_are_no_part_of_the_answer():
    assert run(list("\n\nYes.\n\n"), "Assistant: <think>\n</think>") == [("Yes.\n\n", False)]
    assert run(list("\n\nYes."), "Assistant:") == [("\n\nYes.", False)]


@given(st.lists(st.integers(1, 4)))
def test_an_unclosed_mark_of_the_prompt_is_not_in_the_text(sizes):
    for prompt, text, parts in (
        ("Assistant: <think", ">\nHm.\n</think>\n\nYes.", [("Hm.\n", True), ("Yes.", False)]),
        ("Assistant: <think>\n</think", ">\n\nYes.", [("Yes.", False)]),
        ("Assistant: <think></think", "> 2 > 1", [(" 2 > 1", False)]),
        ("Assistant: <think", "Hm.</think>Yes.", [("Hm.", True), ("Yes.", False)]),
    ):
        assert run(cut(text, sizes), prompt) == parts


def test_other_marks_can_be_given():
    text = "[THINK]a[/THINK]b"
    assert run(list(text), opening="[THINK]", closing="[/THINK]") == [("a", True), ("b", False)]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("Assistant: <think>", True),
        ("Assistant: <think>\n", True),
        ("Assistant: <think>\n</think>", False),
        ("Assistant: <think", True),
        ("Assistant: <think>\n</think", False),
        ("", False),
    ],
)
def test_a_prompt_shows_whether_it_opened_the_thoughts(prompt, opened):
    assert opens_thinking(prompt) == opened


HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
HARMONY_WORDS = st.sampled_from(
    ["<|start|>assistant", "<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|constrain|>json", "a", "<|"]
)
MADE = "<|start|>assistant"


def channels(pieces, prompt=MADE):
    stream = Channels(prompt)
    parts = [part for piece in pieces for part in stream.feed(piece)] + stream.flush()
    texts = {True: "", False: ""}
    for part in parts:
        texts[part.thinking] += part.text
    return texts[True], texts[False]


@given(st.lists(HARMONY_WORDS, max_size=12).map("".join), cuts())
def test_channels_in_any_pieces_give_the_same_result(text, places):
    assert channels(cut(text, places)) == channels([text])


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        (HARMONY, "Hm.", "Yes."),
        (HARMONY + "<|return|>", "Hm.", "Yes."),
        ("<|channel|>final<|message|>Yes <|b|>.", "", "Yes <|b|>."),
        (
            "<|channel|>commentary<|message|>First,<|end|>" + MADE + "<|channel|>final<|message|> then",
            "",
            "First, then",
        ),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", "{}", ""),
        ("<|channel|>analysis to=python code<|message|>1<|end|>", "1", ""),
        ("Yes.", "", "Yes."),
        (" to=functions.f<|channel|>commentary<|message|>{}", "{}", ""),
        ("Yes <|end|><|start|>assistant<|channel|>analysis<|message|>Hm", "Hm", "Yes "),
        ("<|chan", "", "<|chan"),
        ("<|channel|>", "", ""),
    ],
)
def test_the_analysis_channel_of_harmony_and_text_for_tools_are_reasoning(text, thoughts, answer):
    assert channels([text]) == (thoughts, answer)


def test_a_prompt_may_open_a_channel():
    assert channels(["Yes"], MADE + "<|channel|>final<|message|>") == ("", "Yes")
    assert channels(["Hm"], MADE + "<|channel|>analysis<|message|>") == ("Hm", "")


def test_marks_follow_the_template():
    assert marks_of("<|im_start|>") is THINK
    assert marks_of("... <|channel|>final ...").channels
    assert marks_of("strip(<channel|>)").opening == "<|channel>thought"
    assert run(["<|chan", "nel>thought\nHm<channel", "|>Yes"], opening=GEMMA4.opening, closing=GEMMA4.closing) == [
        ("Hm", True),
        ("Yes", False),
    ]


GEMMA4 = marks_of("<channel|>")


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>PLAN<|end|><|start|>assistant<|channel|>final<|message|>ANSWER",
        "<|channel>thoughtPLAN<channel|>ANSWER",
        "<|START_THINKING|>PLAN<|END_THINKING|>ANSWER",
        "<think:opensource>PLAN</think:opensource>ANSWER",
        "[THINK]PLAN[/THINK]ANSWER",
        "<seed:think>PLAN</seed:think>ANSWER",
        "<think>PLAN</think><response>ANSWER</response>",
        "<think>PLAN</think>ANSWER",
    ],
)
def test_an_answer_in_the_marks_of_its_template_is_split(text):
    """The template shows the marks, so the text does, too."""
    splitter = marks_of(text).splitter("")
    parts = [part for letter in text for part in splitter.feed(letter)] + splitter.flush()
    assert "".join(part.text for part in parts if part.thinking).strip() == "PLAN"
    assert "".join(part.text for part in parts if not part.thinking).strip() == "ANSWER"
