"""Sums that the built-in model is asked: computed exactly, or said to be beyond it."""

import operator
import random

import pytest

from rwkv_gpu.builtin import help, sums


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_of_two_numbers_is_what_python_computes(seed):
    rng = random.Random(seed)
    signs = {"+": operator.add, "plus": operator.add, "-": operator.sub, "minus": operator.sub, "*": operator.mul}
    signs |= {"times": operator.mul, "x": operator.mul, "multiplied by": operator.mul}
    sign = rng.choice(list(signs))
    a, b = rng.randint(0, 9999), rng.randint(0, 9999)
    ask = rng.choice(
        ("what is {}?", "{}", "How much is {}", "calculate {} please", "can you work out {} for me", "{} =")
    )
    assert sums.answer(ask.format(f"{a} {sign} {b}")).endswith(f" {signs[sign](a, b):,}.")


@pytest.mark.parametrize(
    ("question", "ends"),
    [
        ("2 + 3 * 4", "14."),
        ("(2 + 3) * 4", "20."),
        ("2^3^2", "512."),
        ("-3 + 5", "2."),
        ("10 / 4", "2.5."),
        ("what is 1 divided by 3", "about 0.333333."),
        ("15% of 2384", "357.6."),
        ("square root of 7921", "89."),
        ("divide 98765 by 43 please", "about 2,296.860465."),
        ("subtract 5 from 12", "7."),
        ("two hundred and five times three", "615."),
        ("half of 50", "25."),
        ("5 factorial", "120."),
        ("what's the cube of 13", "2,197."),
        ("what is 7 to the 5th", "16,807."),
        ("sum of 250 and 250", "500."),
        ("1,000,000 + 1", "1,000,001."),
        ("0.1 + 0.2", "0.3."),
        ("quick one: 9 + 4 = ?", "13."),
        ("five minus two, as a number", "3."),
        ("What do you get when 12 is doubled?", "24."),
        ("3 less than 10", "7."),
        ("half a dozen plus one", "7."),
        ("I buy 3 pizzas at 5 euro each, how much do I pay", "15."),
    ],
)
def test_signs_and_words_bind_as_in_mathematics(question, ends):
    assert sums.answer(question).endswith(f" {ends}")


@pytest.mark.parametrize(
    "question", ["1 / 0", "9^9^9", "100!", "sqrt of -4", "99999999 * 999999999999", "2 +", "(1 + 2", "1 2 + 3"]
)
def test_what_has_no_result_to_show_gets_none(question):
    assert sums.answer(question) in ("", sums.BEYOND)


@pytest.mark.parametrize(
    "question",
    ["what is 5", "how old are you", "top_p 0.9", "I have 2 cats and 3 dogs", "12", "and plus 5", "is 8 GB enough", ""],
)
def test_what_is_no_sum_is_left_alone(question):
    assert not sums.answer(question)


@pytest.mark.parametrize(
    "question",
    [
        "solve 3x + 4 = 10",
        "a train travels 300 km in 2.5 hours, how fast is it",
        "convert 100 fahrenheit to celsius",
        "i have 14 boxes with 36 eggs each, how many eggs",
        "what is the average of 3, 8 and 19",
    ],
)
def test_what_it_cannot_work_out_it_says_it_cannot(question):
    assert help.load().find(question) == help.Found(answer=sums.BEYOND, sure=True)
