"""Titles of reports, as users write them in place of questions: symptoms and feature requests."""

import re
from pathlib import Path

import pytest

from rwkv_gpu.builtin import help, reports
from rwkv_gpu.models.registry import MODELS
from training import evaluate

TITLES = Path(__file__).with_name("help_titles.txt")
HELP = help.load(tuple(MODELS))


def test_every_symptom_leads_to_an_entry_that_there_is():
    titles = {passage.asked[0] for passage in HELP.passages if passage.asked}
    assert {rule.heading for rule in reports.rules()} <= titles


def test_nearly_every_title_of_a_report_gets_a_right_answer():
    every = [asked for (asked,) in evaluate.helped(TITLES)]
    wrong = [asked.question for asked in every if not asked.good(HELP.find(asked.question).answer)]
    assert len(every) > 70
    assert len(wrong) <= 0.05 * len(every), wrong


def test_what_is_said_in_small_talk_is_no_report():
    talk = HELP.search.small_talk
    assert len(talk) > 1000
    assert not [said for said in talk if reports.symptoms(said) or reports.requested(said)]


def test_a_question_how_to_do_something_is_no_symptom():
    assert reports.symptoms("the server crashes")
    assert reports.symptoms("why does the server crash?")
    assert not reports.symptoms("how do I restart the server when it crashes?")
    assert not reports.symptoms("what is repeated after a crash?")


@pytest.mark.parametrize("title", ["[Bug] it hangs", "Bug: it hangs", "Misc. bug: it hangs", "[Usage]: it hangs"])
def test_a_tag_before_a_title_says_nothing(title):
    assert reports.plain(title) == "it hangs"
    assert HELP.find(title).answer == HELP.find("it hangs").answer


@pytest.mark.parametrize(
    ("title", "asked"),
    [
        ("Add support for Zyphra", "Zyphra"),
        ("please add dark mode", "dark mode"),
        ("Zyphra support", "Zyphra"),
        ("Support for Zyphra?", "Zyphra"),
        ("Model request: Zyphra 7B", "Zyphra 7B"),
        ("how do I add a stop word", ""),
        ("is there a way to add a key", ""),
        ("hello", ""),
    ],
)
def test_what_a_title_requests_is_found(title, asked):
    assert reports.requested(title) == asked


@pytest.mark.parametrize("title", ["Support for Zyphroid", "Add Zyphroid integration", "Zyphroid-7B support"])
def test_a_name_that_the_docs_do_not_have_is_said_to_be_none_of_theirs(title):
    """Else the nearest passage would say yes to something else."""
    found = HELP.find(title)
    assert found.sure
    assert found.answer.startswith('The docs and --help do not mention "Zyphroid')
    assert "Yes, it runs" not in found.answer
    assert "do not mention" not in HELP.find("Support for Mixtral").answer


def test_a_family_of_models_is_never_the_answer_without_its_name():
    """`X support` is near to the questions of every family."""
    families = [passage for passage in HELP.passages if passage.needs]
    assert len(families) > 60
    for requested in ("Zyphroid support", "is Zyphroid supported", "does Zyphroid work", "can I run Zyphroid"):
        assert not re.search("(Yes|No), it (runs|does not run)", HELP.find(requested).answer), requested
