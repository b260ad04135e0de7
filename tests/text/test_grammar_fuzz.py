"""Any text as a schema, a regular expression or a grammar gives masks or a typed error, in one line."""

import json
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rwkv_gpu.errors import BadGrammar, BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.ops.sampling import allowed
from rwkv_gpu.text.gbnf import to_lark
from rwkv_gpu.text.grammar import Form, Grammars
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
REGEX = [
    "a",
    "b",
    "[a-c]",
    "[^x]",
    r"\d",
    r"\w",
    ".",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{1,3}",
    "{,}",
    "\\",
    "é",
    "^",
    "$",
    "(?i)",
]
GBNF = [
    "root",
    "::=",
    "x",
    "a-b",
    '"a"',
    '"\\n"',
    '"',
    "[a-z]",
    "[^a]",
    "[",
    "]",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2,3}",
    "{",
    "#",
    "\n",
    " ",
    ".",
]
LARK = [
    "start",
    ":",
    "x",
    "X",
    '"a"',
    "/[a-z]/",
    "/",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2,3}",
    "~2",
    "\n",
    " ",
    "%json {}",
    "%ignore X",
    "->",
]
WORDS = st.sampled_from(["a", "b", "name", "é", ""])


class Writer:
    """Generates answers by a form with random tokens."""

    def __init__(self):
        with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
            self.tokenizer = load_tokenizer(file.metadata)
        self.grammars = Grammars(self.tokenizer, self.tokenizer.vocab_size)

    def write(self, form, budget, seed=0):
        """Returns the text, and whether the form was complete."""
        rng = np.random.default_rng(seed)
        grammar = self.grammars.grammar(form, budget=budget)
        text = b""
        for _ in range(budget):
            may = np.flatnonzero(allowed(grammar.mask(), self.tokenizer.vocab_size)).tolist()
            assert may, "a mask without tokens"
            token = int(rng.choice(may))
            if token in grammar.stop_ids:
                return text.decode(errors="replace"), True
            text += self.tokenizer.piece(token)
            grammar.accept(token)
            if grammar.done:
                return text.decode(errors="replace"), True
        return text.decode(errors="replace"), False


@pytest.fixture(scope="module")
def writer():
    writer = Writer()
    yield writer
    writer.grammars._pool.close()


def try_to_write(writer, **form):
    refusal = ""
    try:
        writer.write(Form.of(**form), budget=8)
    except (BadGrammar, BadInput) as error:
        refusal = str(error)
    assert "\n" not in refusal and len(refusal) < 400


@FEW
@given(st.lists(st.sampled_from(REGEX), max_size=12).map("".join))
def test_any_text_may_be_a_regular_expression(writer, text):
    try_to_write(writer, regex=text)


@FEW
@given(st.lists(st.sampled_from(GBNF), max_size=20).map("".join))
def test_any_text_may_be_a_gbnf(writer, text):
    try_to_write(writer, grammar="root ::= " + text)


@FEW
@given(st.lists(st.sampled_from(LARK), max_size=20).map("".join))
def test_any_text_may_be_a_lark_grammar(writer, text):
    try_to_write(writer, grammar="start: " + text)


KEYWORDS = st.sampled_from([
    "type", "enum", "const", "properties", "required", "items", "minItems", "maxItems", "minLength", "maxLength",
    "pattern", "minimum", "maximum", "anyOf", "allOf", "oneOf", "$ref", "$defs", "format", "additionalProperties",
    "x-guidance", "not",
])  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats(-2, 2)
    | st.sampled_from(
        ["object", "array", "string", "integer", "number", "null", "#", "#/$defs/a", "date", "[a-c]+", "a"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | WORDS, inner, max_size=4),
    max_leaves=12,
)


@FEW
@given(st.dictionaries(KEYWORDS, VALUES, max_size=4))
def test_any_object_may_be_a_json_schema(writer, schema):
    try_to_write(writer, schema=schema)


def schemas(depth=2):
    """Generates satisfiable schemas, each with values that satisfy it."""
    simple = st.sampled_from([
        ({"type": "null"}, lambda value: value is None),
        ({"type": "boolean"}, lambda value: isinstance(value, bool)),
        ({"type": "integer", "minimum": 0, "maximum": 99}, lambda value: type(value) is int and 0 <= value <= 99),
        ({"type": "string", "maxLength": 4}, lambda value: isinstance(value, str) and len(value) <= 4),
        ({"enum": ["x", 3, None]}, lambda value: value in ("x", 3, None)),
    ])  # fmt: skip
    if not depth:
        return simple
    inner = schemas(depth - 1)
    return (
        simple | inner.map(array) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3).map(an_object)
    )


def array(inner):
    schema, fits = inner
    every = lambda value: isinstance(value, list) and len(value) <= 2 and all(map(fits, value))  # noqa: E731
    return {"type": "array", "items": schema, "maxItems": 2}, every


def an_object(inner):
    properties = {name: schema for name, (schema, _) in inner.items()}
    schema = {"type": "object", "properties": properties, "required": [*inner], "additionalProperties": False}

    def fits(value):
        return isinstance(value, dict) and value.keys() == inner.keys() and all(inner[n][1](value[n]) for n in inner)

    return schema, fits


@FEW
@given(schemas(), st.integers(0, 99), st.integers(120, 140))
def test_an_answer_by_a_schema_is_a_value_that_meets_it(writer, schema, seed, budget):
    written, _ = writer.write(Form.of(schema=schema[0]), budget, seed)
    assert schema[1](json.loads(written)), written


# The same language as GBNF and as a regular expression of Python's.
PARTS = st.recursive(
    st.sampled_from(
        [
            ('"a"', "a"),
            ('"b\\n"', "b\n"),
            ("[a-c]", "[a-c]"),
            ("[^a-y\\n]", "[^a-y\n]"),
            ('"\\"é"', '"é'),
            (".", "(?s:.)"),
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda p: tuple(mark.join(one) for mark, one in zip((" ", ""), zip(*p, strict=True), strict=True))
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda p: tuple(f"({'|'.join(one)})" for one in zip(*p, strict=True))
        ),
        st.tuples(inner, st.sampled_from(["?", "{1,2}", "{2}"])).map(lambda p: tuple(f"({one}){p[1]}" for one in p[0])),
    ),
    max_leaves=6,
)


@FEW
@given(PARTS, PARTS, st.integers(0, 9))
def test_gbnf_and_a_regular_expression_of_one_language_agree(writer, first, second, seed):
    grammar = f"root ::= part-1 Part_1? # twice\npart-1 ::= {first[0]}\nPart_1 ::=\n  {second[0]}\n"
    written, complete = writer.write(Form.of(grammar=grammar), 60, seed)
    if complete:
        assert re.fullmatch(f"(?:{first[1]})(?:{second[1]})?", written), (grammar, written)


@pytest.mark.long
@given(st.text(max_size=200))
def test_any_text_is_translated_or_refused(text):
    with suppress(BadGrammar):
        assert isinstance(to_lark("root ::= " + text), str)
