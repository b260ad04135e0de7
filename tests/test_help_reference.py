"""What `--help` and the pages say is found by whoever asks for it: defaults, bounds, differences, names of fields."""

import itertools
import re
from pathlib import Path

import pytest

from rwkv_gpu.builtin import help, naming, pages, retriever
from rwkv_gpu.builtin.reference import OPTION
from rwkv_gpu.models.registry import MODELS
from training import help_index

ROOT = Path(__file__).resolve().parent.parent
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
HELP = help.load(tuple(MODELS))
OPTIONS = [passage for passage in HELP.passages if passage.weight == OPTION and passage.asked[0][0] == "-"]
COMMANDS = re.findall(r"^## rwkv-gpu (\S+)", CLI, re.MULTILINE)


def test_the_default_of_every_option_is_answered_with_what_help_says():
    """For every option and command that has a default in docs/cli.md."""
    asked = set()
    for command, page in re.findall(r"^## rwkv-gpu (\S+)\n(.*?)(?=^## |\Z)", CLI, re.MULTILINE | re.DOTALL):
        for flags, _, default in help_index._options(page.partition("Options:")[2]):
            name = re.findall(r"--[a-z][\w-]*", flags)[0]
            if default and (name, default) not in asked:
                answer = HELP.find(f"what is the default of {name} in rwkv-gpu {command}?").answer
                assert f"`{name}`" in answer, (command, name)
                assert f"`{default}`" in answer, (command, name)
                asked.add((name, default))
    assert len(asked) > 50


@pytest.mark.parametrize(
    ("question", "holds"),
    [
        ("what does repeat-last-n default to", "is `64`"),
        ("chunk size if I do not set it?", "is `512`"),
        ("how many draft tokens by default", "15, or 7 with a recurrent state"),
        ("how many tokens does generate write at most if i say nothing", "`128` with `batch` and `generate`"),
        ("where does download put a file if i give no folder", "Target folder"),
        ("how many lines does batch answer at a time by default", "Lines to answer"),
        ("which branch does pull take if I do not give one", "`main` with `pull`"),
        ("max draft-tokens?", "at most 15"),
    ],
)
def test_a_default_or_a_bound_may_be_asked_for_in_plain_words(question, holds):
    assert holds in HELP.find(question).answer


@pytest.mark.parametrize("text", ["is the sky blue by default", "what is the maximum temperature of the sun"])
def test_a_default_of_something_else_is_not_answered_with_an_option(text):
    assert not re.match(f"{help.FROM}`-", HELP.find(text).answer)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("which port is the default", True),
        ("what is it by default", True),
        ("write 512 tokens instead of the default", False),
        ("how do I change the default device", False),
        ("more than the default, please", False),
    ],
)
def test_who_wants_something_else_than_the_default_does_not_ask_for_it(text, asks):
    assert naming.asks_default(text) is asks


def test_what_is_compared_is_quoted_on_both_sides():
    """For pairs of commands: an entry on the difference, or what `--help` says of each."""
    pairs = list(itertools.combinations(COMMANDS, 2))[::7]
    assert len(pairs) > 25
    for pair in pairs:
        answer = HELP.find(f"what is the difference between {pair[0]} and {pair[1]}?").answer
        assert all(re.search(rf"rwkv-gpu {name}\b|`{name}", answer) for name in pair), pair


def test_names_are_compared_where_the_question_compares_them():
    assert naming.compared("pull vs download", COMMANDS) == ("pull", "download")
    assert naming.compared("`--draft`, or --lookup?", ("--draft", "--lookup")) == ("--draft", "--lookup")
    assert not naming.compared("pull and download a model", COMMANDS)
    assert naming.compared("which is it, pull or download?", COMMANDS) == ("pull", "download")
    assert not naming.compared("does bench use what tune found or the defaults?", COMMANDS)


def test_passages_on_the_command_that_is_named_come_first_among_equals():
    on = HELP._reference.of_commands("the integers that the tokenizer makes")
    assert on
    assert all("tokenize" in HELP.passages[number].text for number in on)
    first, other = min(on), next(n for n in range(len(HELP.passages)) if n not in on)
    scores = {other: 1.0, first: 1.0}
    HELP._add_commands(scores, "tokenize it")
    assert scores[first] > scores[other] == 1.0
    assert not HELP._reference.of_commands("how do I chat")


def test_what_the_docs_do_not_mention_is_said_so_where_it_is_asked_for():
    unknown, known = HELP.find("is there a graphql api?").answer, HELP.find("is there an HTTP api?").answer
    assert unknown.startswith('The docs and --help do not mention "graphql". ' + help.NEAREST)
    assert known.startswith(help.FROM)


@pytest.mark.parametrize("text", ["is there a way to periodically restart", "any ideas for a 16core machine"])
def test_adverbs_and_amounts_are_no_names_that_the_docs_lack(text):
    assert "do not mention" not in HELP.find(text).answer


def test_a_passage_outside_the_entries_needs_words_of_the_question():
    """The retriever's guess that a question is about none of them is no sign for any other passage."""
    other = next(n for n in range(len(HELP.passages)) if n not in HELP._entries)
    scores = HELP._scores([(0.2, other)], {retriever.ELSEWHERE: 0.9}, ())
    assert scores[other] == 0.2
    assert HELP._scores([(1.2, other)], {retriever.ELSEWHERE: 0.9}, ())[other] > 3


def test_a_field_of_a_request_is_found_by_its_name():
    """For every field of the server's tables that has an underscore: a name that stands in nothing else."""
    rows = [one for one in HELP._pages.sentences if one.page == "docs/server.md" and re.match(r"`\w+_\w+`", one.text)]
    assert len(rows) > 20
    for row in rows:
        name = re.match(r"`(\w+_\w+)`", row.text)[1]
        assert pages.has(HELP.find(f"does the server take {name}?").answer, name.replace("_", "-")), name


def test_what_is_quoted_lacks_no_name_that_a_page_has():
    question, quoted = "does the server honour logit_bias", ["Each field is honoured, ignored or refused."]
    sentence = HELP._missing(question, HELP._words(question), quoted, known=1.0)
    assert "`logit_bias`" in sentence.text
    assert "`logit_bias`" in (ROOT / sentence.page).read_text(encoding="utf-8")
    assert HELP._missing(question, HELP._words(question), [sentence.text], known=1.0) is None
    assert "folder of cached results" in HELP._pages.naming("rwkv-gpu-cache", {}).text
    assert HELP._pages.naming("no-such-field", {}) is None


def test_what_most_descriptions_of_options_say_finds_the_option():
    """The words of a description, asked as they stand."""
    found = [
        any(name in HELP.find(f"is there an option for this: {told.lower()}").answer for name in option.asked)
        for option in OPTIONS[::2]
        if (told := option.text.partition(": ")[2].split(". ")[0].rstrip("."))
    ]
    assert len(found) > 50
    assert sum(found) > 0.83 * len(found)


@pytest.mark.parametrize(("typed", "meant"), [("qunatize my modle", "quantize"), ("benhcmark", "bench")])
def test_letters_that_changed_places_are_read_as_what_was_meant(typed, meant):
    assert f"rwkv-gpu {meant}" in HELP.find(f"how do i {typed}").answer


def test_the_pages_are_read_when_they_are_first_needed():
    fresh = help.Help(HELP.search, HELP.everyday, HELP.retriever)
    assert fresh.find("how do I resume a chat?").sure
    assert "_reference" not in vars(help.Help(HELP.search))
