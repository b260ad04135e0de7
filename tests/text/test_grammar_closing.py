"""An answer in JSON ends before its budget does, whatever tokens a model prefers."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.ops.sampling import allowed
from rwkv_gpu.text import grammar_closing
from rwkv_gpu.text.grammar import Form, Grammars, pool_of
from rwkv_gpu.text.grammar_closing import Closing, Kinds, Text
from rwkv_gpu.text.grammar_worker import Worker
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden

NAMES = [f"field{n}" for n in range(8)]


def closed_object(**properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TEXT = {"type": "string"}
SCHEMAS = {
    "a string": TEXT,
    "anything": {},
    "an object": closed_object(name=TEXT, age={"type": "integer"}, tags={"type": "array", "items": TEXT}),
    "a string of a length": closed_object(name={"type": "string", "minLength": 6, "maxLength": 200}),
    "one of some": closed_object(kind={"enum": ["a long name of a kind", "bird", "x"]}, note=TEXT),
    "what may be left out is large": {
        "type": "object",
        "properties": {"large": closed_object(**dict.fromkeys(NAMES, TEXT)), "small": TEXT},
        "additionalProperties": False,
    },
    "objects inside objects": {
        "$ref": "#/$defs/node",
        "$defs": {"node": closed_object(v={"type": "number"}, c={"type": "array", "items": {"$ref": "#/$defs/node"}})},
    },
    "an email address": closed_object(to={"type": "string", "format": "email"}),
    "an address of a page": closed_object(at={"type": "string", "format": "uri", "minLength": 3}, note=TEXT),
    "a duration": closed_object(takes={"type": "string", "format": "duration"}),
    "an address by a pattern": closed_object(to={"type": "string", "pattern": "^[^@]+@[^@.]+\\.[a-z]{2,}$"}),
    "strings with a pattern": closed_object(day={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}, note=TEXT),
}


class SameProcess:
    """A pool without helper processes: its sessions run in this process."""

    def __init__(self, vocabulary):
        self.worker = Worker(pytest.importorskip("llguidance"), lambda seconds: None)
        self.worker.vocabulary(*vocabulary)
        self.numbers = itertools.count()

    def session(self, source, left):
        number = next(self.numbers)
        session = SimpleNamespace(answer=self.worker.open(number, source.ends, source.kind, source.text, b"", (), left))
        session.reply = lambda: session.answer
        session.accept = lambda token, left: setattr(session, "answer", self.worker.accept(number, (token,), left))
        return session


class Writer:
    """Generates answers by a schema with random tokens that rarely end it."""

    def __init__(self, name):
        with GGUFFile.open(golden(name)) as file:
            self.tokenizer = load_tokenizer(file.metadata)
        size = self.tokenizer.vocab_size
        self.grammars = Grammars(self.tokenizer, size, pool=SameProcess(pool_of(self.tokenizer, size)._vocabulary()))

    def write(self, schema, budget, seed):
        """Returns the bytes of an answer, and its number of tokens."""
        rng = np.random.default_rng(seed)
        grammar = self.grammars.grammar(Form.of(schema=schema), budget=budget)
        text = b""
        for used in range(budget):
            may = np.flatnonzero(allowed(grammar.mask(), self.tokenizer.vocab_size)).tolist()
            going_on = [token for token in may if token not in grammar.stop_ids]
            token = int(rng.choice(going_on if going_on and rng.random() < 0.95 else may))
            if token in grammar.stop_ids:
                return text, used
            text += self.tokenizer.piece(token)
            grammar.accept(token)
            if grammar.done:
                return text, used + 1
        return text, budget


@pytest.fixture(scope="module", params=["tiny-rwkv7.gguf", "tiny-llama.gguf", "tiny-qwen3.gguf"])
def writer(request):
    return Writer(request.param)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(("budget", "seed"), [(60, 0), (61, 1), (90, 2)])
def test_an_answer_by_a_schema_parses_however_few_tokens_are_left(writer, name, budget, seed):
    text, used = writer.write(SCHEMAS[name], budget, seed)
    json.loads(text)
    assert used <= budget


def test_an_answer_has_all_its_budget_but_for_its_end(writer):
    used = [writer.write(TEXT, 40, seed)[1] for seed in range(3)]
    assert max(used) >= 38


@pytest.mark.parametrize("kinds", [["a long name of a kind", "bird", "x"], ["x", "a long name", "b" * 40]])
def test_a_budget_that_the_shortest_answer_just_fits_in_is_enough(writer, kinds):
    shortest = json.dumps({"kind": min(kinds, key=len)}, separators=(",", ":"))
    budget = len(writer.grammars._pool.worker._pieces.split(shortest.encode())) + 1  # the end is a token, too
    for seed in range(5):
        text, _ = writer.write(closed_object(kind={"enum": kinds}), budget, seed)
        assert text.decode() == shortest


def test_the_end_of_a_number_that_more_keys_follow_is_found(writer):
    """A search that tries further digits first would end at its limit, and be repeated at each token."""
    source = json.dumps(closed_object(x={"type": "number", "minimum": 1}, y=TEXT))
    worker, ends = writer.grammars._pool.worker, tuple(writer.tokenizer.stop_ids)
    worker.open(-1, ends, "schema", source, b'{"x":7', (), 100)
    session = worker._sessions[-1]
    assert session._bounds[-1]._find(session._matcher) is not None


@pytest.mark.parametrize("pattern", ["^[a-z]+q[0-9]$", "^[^ ]+ing$", "^.{900}$"])
def test_a_string_whose_end_is_not_found_is_not_searched_for_at_each_token(writer, pattern, monkeypatch):
    searches, tries = [], Closing._search
    monkeypatch.setattr(Closing, "_search", lambda *given: searches.append(1) or tries(*given))
    budget = 200
    writer.write(closed_object(a={"type": "string", "pattern": pattern}), budget, seed=0)
    assert len(searches) < budget


def test_a_budget_too_small_for_any_answer_cuts_it_off(writer):
    text, used = writer.write(closed_object(**dict.fromkeys(NAMES, TEXT)), 5, seed=0)
    assert used == 5 and text.startswith(b"{")


def test_json_is_compact_unless_the_schema_sets_white_space(writer):
    schema = closed_object(a={"type": "array", "items": {"type": "integer"}, "minItems": 2}, b={"type": "null"})
    for seed in range(5):
        text, _ = writer.write(schema, 200, seed)
        assert text == json.dumps(json.loads(text), separators=(",", ":")).encode()
    spaced = {**schema, "x-guidance": {"whitespace_pattern": "[ ]{1,2}"}}
    text, _ = writer.write(spaced, 200, seed=0)
    assert b" " in text and json.loads(text)["b"] is None


@given(st.lists(st.text('a"\\\n/é', max_size=6), max_size=3), st.integers(1, 4))
def test_text_is_inside_a_string_and_after_a_backslash_as_in_json(strings, size):
    """Fed in pieces of any size. json writes no backslash outside of strings, so an odd run of them escapes."""
    data = json.dumps(strings).encode()
    text, inside = Text(), False
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        text.feed(piece)
        for n in range(at, at + len(piece)):
            backslashes = n - len(data[:n].rstrip(b"\\"))
            inside ^= data[n] == ord('"') and backslashes % 2 == 0
        seen = data[: at + len(piece)]
        assert text.inside == inside
        assert text.escaped == ((len(seen) - len(seen.rstrip(b"\\"))) % 2 == 1)
        assert text.copy().order == text.order


def test_the_end_of_an_answer_is_not_searched_in_the_middle_of_a_string(monkeypatch):
    """A search for an end once took fifty times as long as the mask, at each token."""
    llguidance = pytest.importorskip("llguidance")
    looked, find = [], Closing._find
    monkeypatch.setattr(Closing, "_find", lambda self, matcher: looked.append(self) or find(self, matcher))
    worker = Worker(llguidance, lambda seconds: None)
    worker.vocabulary([bytes([byte]) for byte in range(256)], 0, None)
    worker.open(1, (0,), "schema", json.dumps(closed_object(a={"type": "string"})), b"", (), 100)
    for left, byte in enumerate(b'{"a":"', start=-99):
        worker.accept(1, (byte,), -left)
    before = len(looked)
    for left in range(90, 80, -1):
        assert worker.accept(1, (ord("x"),), left)[0] is None
    assert len(looked) == before
    worker.accept(1, (ord('"'),), 80)
    assert len(looked) == before + 1


def test_masks_far_from_the_end_are_tried_once_each_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(grammar_closing, "KNOWN", 2)
    monkeypatch.setattr(Closing, "_find", lambda self, matcher: 1)
    tried = []
    monkeypatch.setattr(Closing, "_try", lambda self, matcher, allowed, kinds: tried.append(allowed) or [])
    closing = Closing(Kinds([bytes([byte]) for byte in range(256)], list))
    closing._end = [0]
    for mask in (1, 3, 1, 3, 5, 5, 1):
        closing.narrow(None, bytes([mask]), 200)
    assert tried == [1, 3, 5, 1]
