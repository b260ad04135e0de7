"""The retriever of the built-in help: what it knows, what it weighs, and how it learns."""

import re
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.builtin import help, retriever
from rwkv_gpu.builtin.retriever import ELSEWHERE, SMALL_TALK, SUM
from training import apart
from training import retriever as training

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = re.findall(r"^### (.+)$", (ROOT / "docs" / "questions.md").read_text(encoding="utf-8"), re.MULTILINE)
ANSWERS = {passage.asked[0]: passage.text for passage in help.read()[0].passages if passage.asked}
TRAINED = retriever.load()


def test_it_is_small_and_knows_nearly_all_entries():
    """A new entry is found by the search alone until `python -m training.retriever` is run again."""
    assert retriever.WEIGHTS.stat().st_size < 1_000_000
    assert TRAINED.names[-3:] == (ELSEWHERE, SMALL_TALK, SUM)
    assert len(set(HEADINGS) & set(TRAINED.names)) >= 0.97 * len(HEADINGS)


def test_its_probabilities_add_up_to_one_and_are_the_same_each_time():
    guess = TRAINED.guess("how do I resume a chat?")
    assert sum(guess.values()) == pytest.approx(1)
    assert guess == retriever.load().guess("how do I resume a chat?")


def test_a_heading_is_guessed_as_its_own_entry():
    known = [heading for heading in HEADINGS if heading in TRAINED.names]
    right = [max(guess, key=guess.get) == heading for heading in known for guess in [TRAINED.guess(heading)]]
    assert sum(right) >= 0.97 * len(known)


@pytest.mark.parametrize("text", ["", "?", "ß 漢字", "x" * 10_000])
def test_any_text_is_guessed(text):
    assert sum(TRAINED.guess(text).values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("hwo can i reusme my old converstaion", "How do I resume a chat?"),
        ("does it undrstand speach", "Does it understand speech?"),
        ("uninstal", "How do I uninstall rwkv-gpu?"),
        ("it says out off memmory", "What do I do when memory runs out?"),
    ],
)
def test_misspelt_words_are_understood(question, name):
    found = help.load().find(question)
    assert name in found.answer or ANSWERS[name] in found.passages


def test_what_the_retriever_does_not_know_is_found_by_the_search():
    search, everyday = help.read()
    alone = help.Help(search, everyday)
    fewer = retriever.Retriever(
        ("How do I update rwkv-gpu?", ELSEWHERE, SMALL_TALK, SUM), TRAINED.table, TRAINED.answers[:4]
    )
    for question in ("how do I resume a chat?", "what does --min-p do?"):
        assert set(alone.find(question).passages) & set(help.Help(search, everyday, fewer).find(question).passages)


def test_training_tells_entries_apart():
    """On three entries with words of their own, also for wordings that were not learnt."""
    texts = {
        "How do I resume a chat?": ["continue the old conversation", "resume my conversation", "old chat continue"],
        "How do I leave the chat?": ["quit the program", "exit this program", "how to quit and exit"],
        "Is there an HTTP server?": ["serve over http", "http server for api", "server with an api"],
    }
    names = (*texts, ELSEWHERE, SMALL_TALK, SUM)
    known = [training.Example(text, n) for n, asked in enumerate(texts.values()) for text in asked]
    of = training.Examples(
        names, known, [[word for text in asked for word in text.split()] for asked in texts.values()]
    )
    trained = retriever.quantised(names, *training.train(of, known, epochs=60))
    for question, right in zip(("resume conversation", "exit program now", "an http api"), texts, strict=True):
        guess = trained.guess(question)
        assert max(guess, key=guess.get) == right


def test_weights_are_read_as_they_were_written(tmp_path):
    retriever.save(tmp_path / "weights.npz", TRAINED)
    again = retriever.load(tmp_path / "weights.npz")
    assert again.names == TRAINED.names
    assert np.array_equal(again.table, TRAINED.table)
    assert np.array_equal(again.answers, TRAINED.answers)


def test_questions_of_the_judged_sets_are_not_learnt():
    asked = [one.text for one in training.examples().known if not one.exact]
    assert len(asked) > 9000
    assert not [text for text in asked if apart.near(text)]
