"""Bad settings are refused on construction, by name."""

import dataclasses
import math

import numpy as np
import pytest

from rwkv_gpu.engine.sampling import Sampler, SamplingParams
from rwkv_gpu.engine.sampling_params import SPANS
from rwkv_gpu.errors import BadInput
from tests.cases import each

WRONG = {
    name: [span.low - 1, span.high * 2, math.nan, "1", True, [1]]
    + ([0.5] if span.whole else [])
    + ([span.low] if span.above else [])
    + ([] if span.optional else [None])
    for name, span in SPANS.items()
}


@each(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_number_out_of_range_is_refused_with_its_name_value_and_range(name, value):
    with pytest.raises(BadInput) as refused:
        SamplingParams(**{name: value})
    assert str(refused.value) == f"{name} is {value!r}; it must be {SPANS[name]}"


@pytest.mark.parametrize("name", SPANS)
def test_the_ends_of_a_range_are_in_it(name):
    span = SPANS[name]
    kind = int if span.whole else float
    assert getattr(SamplingParams(**{name: kind(span.high)}), name) == span.high
    if not span.above:
        low = np.int64(span.low) if span.low == int(span.low) else np.float64(span.low)
        assert getattr(SamplingParams(**{name: low}), name) == span.low


def test_every_numeric_field_has_a_range():
    numeric = {
        field.name
        for field in dataclasses.fields(SamplingParams)
        if field.type in (int, float, "int", "float", int | None)
    }
    assert numeric == set(SPANS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop": ("a", "")}, "stop holds ''"),
        ({"stop": 3}, "stop holds 3"),
        ({"stop_ids": [1, -1]}, "stop_ids holds -1"),
        ({"stop_ids": "12"}, "stop_ids holds '12'"),
        ({"dry_breakers": [1.5]}, "dry_breakers holds 1.5"),
        ({"logit_bias": [1]}, "logit_bias is"),
        ({"logit_bias": {"a": 1}}, "logit_bias names 'a'"),
        ({"logit_bias": {1: math.inf}}, "logit_bias of token 1 is inf"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 is nan"),
        ({"lora": ["a"]}, "lora is"),
        ({"lora": {1: 1.0}}, "lora of 1 is 1.0"),
        ({"lora": {"a": 1001}}, "lora of 'a' is 1001"),
        ({"logits_processors": [len, 3]}, "logits_processors holds 3"),
    ],
)
def test_other_bad_values_are_refused_naming_the_field(settings, message):
    with pytest.raises(BadInput, match=message):
        SamplingParams(**settings)


@pytest.mark.parametrize("settings", [{"logit_bias": {9: 1.0}}, {"stop_ids": [9]}, {"dry_breakers": [9]}])
def test_ids_beyond_the_vocabulary_are_refused(settings):
    with pytest.raises(BadInput, match=f"{next(iter(settings))} names token 9"):
        Sampler(SamplingParams(**settings), 9)


def test_settings_are_converted_to_strict_types():
    bias = {3: 1}
    params = SamplingParams(stop="end", stop_ids=[1, 2], logit_bias=bias, top_k=np.int32(4))
    bias[4] = 2
    assert params.stop == ("end",)
    assert params.stop_ids == {1, 2}
    assert dict(params.logit_bias) == {3: 1.0}
    assert type(params.top_k) is int
    assert SamplingParams(logits_processors=len).logits_processors == (len,)
    assert SamplingParams(lora={"a": 1, "b": np.float32(-1000)}).lora == {"a": 1.0, "b": -1000.0}
    hash(params)


def test_more_stop_ids_change_nothing_else():
    given = SamplingParams(temperature=0.5, stop=("a",), stop_ids=(1,), logit_bias={2: 1.0}, seed=3, lora={"b": 1})
    assert given.ending_at(frozenset({4})) == dataclasses.replace(given, stop_ids={1, 4})
    assert given.ending_at(frozenset({1})) is given
    assert given.ending_at(frozenset({1}), frozenset({7})).logit_bias == {2: 1.0, 7: -math.inf}
    ignoring = dataclasses.replace(given, ignore_eos=True).ending_at(frozenset({4}), frozenset({7}))
    assert (ignoring.stop_ids, ignoring.logit_bias) == ({1}, {2: 1.0, 4: -math.inf, 7: -math.inf})


def test_a_value_that_equals_the_default_is_checked_and_converted_too():
    """Checks skip only the default object itself, not any equal value."""
    given = SamplingParams(temperature=1, top_k=np.int64(0), min_p=np.float32(0))
    assert [type(value) for value in (given.temperature, given.top_k, given.min_p)] == [float, int, float]
    for settings in ({"temperature": True}, {"top_k": 0.0}, {"top_k": False}):
        with pytest.raises(BadInput):
            SamplingParams(**settings)
