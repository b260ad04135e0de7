"""Objects with properties have no other keys, unless their schema says otherwise."""

import json

import pytest

import rwkv_gpu
from rwkv_gpu.text.closed_schema import closed
from tests.golden_files import OWN

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
SHUT = {**POINT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (POINT, SHUT),
        ({**POINT, "additionalProperties": True}, {**POINT, "additionalProperties": True}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
        ({"type": "array", "items": POINT}, {"type": "array", "items": SHUT}),
        ({"anyOf": [POINT, True]}, {"anyOf": [SHUT, True]}),
        ({"properties": {"p": POINT}}, {"properties": {"p": SHUT}, "additionalProperties": False}),
        ({"allOf": [POINT, {"properties": {"y": {}}}]}, {"allOf": [POINT, {"properties": {"y": {}}}]}),
        ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, {"$ref": "#/$defs/p", "$defs": {"p": SHUT}}),
        ({"allOf": [{"$ref": "#/$defs/p"}], "$defs": {"p": POINT}},) * 2,
        ({"enum": [POINT]}, {"enum": [POINT]}),
        ({**POINT, "patternProperties": {"^a": POINT}}, {**POINT, "patternProperties": {"^a": SHUT}}),
        (True, True),
    ],
)
def test_only_objects_without_additional_properties_are_closed(schema, expected):
    before = json.dumps(schema)
    assert closed(schema) == expected
    assert json.dumps(schema) == before


def test_a_model_invents_no_keys():
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as llm:
        for given in (schema, json.dumps(schema)):
            for seed in range(4):
                text = llm.generate("x", schema=given, temperature=1, seed=seed, max_tokens=60).text
                assert json.loads(text).keys() <= {"a"}
