"""Objects with properties have no other keys, unless their schema says otherwise."""

import json
import re

import pytest

import rwkv_gpu
from rwkv_gpu.text.closed_schema import closed
from tests.golden_files import OWN

POINT = {"type": "object", "properties": {"x": {"type": "number"}}}
SHUT = {**POINT, "additionalProperties": False}
LEAST, MOST = 1024 - (1 << 63), (1 << 63) - 1024


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (POINT, SHUT),
        ({**POINT, "additionalProperties": True}, {**POINT, "additionalProperties": True}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
        ({"type": "array", "items": POINT}, {"type": "array", "items": SHUT}),
        ({"anyOf": [POINT, True]}, {"anyOf": [SHUT, True]}),
        ({"properties": {"p": POINT}}, {"type": "object", "properties": {"p": SHUT}, "additionalProperties": False}),
        ({"items": [POINT]}, {"type": "array", "items": [POINT]}),
        ({"prefixItems": [POINT]}, {"type": "array", "prefixItems": [SHUT]}),
        ({"items": POINT, "enum": [None]}, {"items": SHUT, "enum": [None]}),
        ({"oneOf": [POINT, {}]}, {"anyOf": [SHUT, {}]}),
        ({"type": "integer"}, {"type": "integer", "minimum": LEAST, "maximum": MOST}),
        ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1, "maximum": MOST}),
        (
            {"type": "integer", "exclusiveMaximum": 1},
            {"type": "integer", "minimum": LEAST, "exclusiveMaximum": 1},
        ),
        ({"type": "integer", "const": 1},) * 2,
        ({"allOf": [POINT, {"properties": {"y": {}}}]}, {"allOf": [POINT, {"properties": {"y": {}}}]}),
        ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, {"$ref": "#/$defs/p", "$defs": {"p": SHUT}}),
        ({"allOf": [{"$ref": "#/$defs/p"}], "$defs": {"p": POINT}},) * 2,
        ({"enum": [POINT]}, {"enum": [POINT]}),
        ({**POINT, "patternProperties": {"^a": POINT}}, {**POINT, "patternProperties": {"^a": SHUT}}),
        ({"type": "string", "format": "uri"}, {"type": "string", "format": "uri"}),
        ({"type": "string", "format": "password"}, {"type": "string"}),
        ({"allOf": [{"properties": {"format": {"format": "path"}}}]}, {"allOf": [{"properties": {"format": {}}}]}),
        (True, True),
    ],
)
def test_only_schemas_without_restrictions_are_narrowed(schema, expected):
    before = json.dumps(schema)
    assert closed(schema) == expected
    assert json.dumps(schema) == before


@pytest.mark.parametrize("name", ["uri-reference", "idn-email", "json-pointer", "password", "zz"])
def test_a_format_that_the_grammar_does_not_know_is_a_note(name):
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as llm:
        schema = {"type": "array", "items": {"type": "string", "format": name}, "minItems": 1}
        assert json.loads(llm.generate("x", schema=schema, temperature=1, seed=1, max_tokens=20).text)


def test_a_model_invents_no_keys():
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as llm:
        for given in (schema, json.dumps(schema)):
            for seed in range(4):
                text = llm.generate("x", schema=given, temperature=1, seed=seed, max_tokens=60).text
                assert json.loads(text).keys() <= {"a"}


def test_numbers_have_a_limited_number_of_digits():
    """Integers have 64 bits, numbers 24 digits in a row, and strings as many as the answer may have."""
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as llm:
        seven = llm.tokenize("7")[-1]
        for kind, most in (("integer", 19), ("number", 24), ("string", 46)):
            text = llm.generate("x", schema={"type": kind}, temperature=0, max_tokens=48, logit_bias={seven: 100}).text
            assert most - 3 < max(map(len, re.findall("[0-9]+", text))) <= most, (kind, text)
            assert str(json.loads(text))
