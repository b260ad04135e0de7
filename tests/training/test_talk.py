"""The text that the built-in model is trained on."""

import functools
import random
import re

import pytest

from tests.cases import each
from training import arithmetic, dictionary, memory, sheet
from training.conversation import conversation, document
from training.grammar import article, expand, sentences
from training.noise import typed

SEEDS = range(400)


@functools.cache
def answers() -> list[str]:
    return [answer for seed in SEEDS for _, answer in conversation(random.Random(seed))]


def slots(name: str) -> str:
    return {"one": "owl", "many": "mice"}[name]


def test_a_template_gives_each_of_its_texts_and_no_other():
    made = {expand("{a|b}[ c] <a one>", random.Random(seed), slots) for seed in range(40)}
    assert made == {"a an owl", "b an owl", "a c an owl", "b c an owl"}


@pytest.mark.parametrize("bad", ["{a|b", "[a", "a}", "<a"])
def test_a_template_that_does_not_close_is_refused(bad):
    with pytest.raises((AssertionError, ValueError)):
        expand(bad, random.Random(0), slots)


@pytest.mark.parametrize(
    ("word", "a"), [("owl", "an"), ("unicorn", "a"), ("hour", "an"), ("house", "a"), ("Ice", "an")]
)
def test_an_article_follows_the_sound(word, a):
    assert article(word) == a


def test_sentences_begin_with_a_capital_but_for_rwkv_gpu():
    assert sentences("a cat. it sleeps! why? so") == "A cat. It sleeps! Why? So"
    assert sentences("rwkv-gpu runs. rwkv-gpu is free.") == "rwkv-gpu runs. rwkv-gpu is free."


def test_a_text_is_the_same_for_the_same_seed_and_seldom_for_another():
    assert [document(seed) for seed in SEEDS] == [document(seed) for seed in SEEDS]
    assert len({str(document(seed)) for seed in SEEDS}) > 0.98 * len(SEEDS)


def test_the_assistant_speaks_in_sentences():
    for text in answers():
        assert re.match(r'[A-Z0-9`"]|rwkv-gpu', text), text
        assert re.search(r'[.!?]["`)]?$', text) or text.startswith("You said"), text
        assert "  " not in text, text
        assert "\n\n" not in text, text


def test_no_template_syntax_is_left():
    for seed in SEEDS:
        for text, _ in document(seed):
            assert not re.search(r"[<>{}|\\]|\[", text.replace("|:(", "")), text


def test_articles_match_the_following_sound():
    for text in answers():
        told = text.partition("You said")[0]
        found = re.findall(r"\b[Aa] ([aeio]\w+)", told) + re.findall(r"\b[Aa]n ([bcdfgjklmnpqrstvwxz]\w+)", told)
        assert [word for word in found if word not in ("one", "once")] == [], text


def test_every_choice_of_a_sheet_has_rows_and_stages():
    told = 0
    for one in sheet.sheets():
        for block, rows in one.choices:
            told += 1
            assert rows, one.name
            assert block.stages
    assert told > 300


@each("seed", range(60))
def test_small_sums_are_right(seed):
    for _, answer in arithmetic.sums(random.Random(seed)):
        found = re.match(r"(\d+) (plus|minus|times) (\d+) is (\d+)\.$", answer)
        if found:
            a, sign, b, result = found.groups()
            assert {"plus": int(a) + int(b), "minus": int(a) - int(b), "times": int(a) * int(b)}[sign] == int(result)


def test_facts_that_the_user_states_are_remembered():
    for seed in range(300):
        rng, known = random.Random(seed), {}
        memory.introduce(rng, known)
        memory.tell(rng, known)
        question, answer = memory.ask(rng, known)[0]
        remembered = any(value.lower() in answer.lower() for value in known.values())
        assert remembered or " not " in answer, question
        [(_, everything)] = memory.sum_up(rng, known)
        for name in known.keys() - {"petname"}:
            assert known[name] in everything


def test_common_words_are_explained_and_rare_ones_are_not_known():
    common, rare = {word for word, *_ in dictionary.common()}, set(dictionary.rare())
    assert len(common) > 2000
    assert not common & rare
    turns = [turn for seed in range(300) for turn in dictionary.words(random.Random(seed))]
    assert any("I do not know" in answer for _, answer in turns)


def test_typing_errors_leave_required_letters_unchanged():
    for seed in range(50):
        assert typed("say Zorblax", random.Random(seed), exact=True).lower().rstrip(".!") == "say zorblax"
