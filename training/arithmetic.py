"""Small sums, comparisons and rows of numbers."""

import random

from .noise import typed
from .sheet import Turn, any_of

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]
_SIGNS = {
    "+": (" plus ", "+", " + ", " and "),
    "-": (" minus ", "-", " - ", " minus "),
    "*": (" times ", "*", " x ", " * ", " multiplied by "),
}
_ASK = (
    "what is {}",
    "how much is {}",
    "{}",
    "calculate {}",
    "what does {} make",
    "can you tell me what {} is",
    "tell me {}",
    "{} =",
    "compute {}",
    "what is the sum {}",
)


def _pair(sign: str, rng: random.Random) -> tuple[int, int, int]:
    most = rng.choice((10, 10, 20, 50, 100))
    if sign == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 10)
        return (a, b, a * b) if rng.random() < 0.5 else (b, a, a * b)
    a, b = rng.randint(0, most), rng.randint(0, most)
    if sign == "+":
        return a, b, a + b
    return max(a, b), min(a, b), abs(a - b)


def sums(rng: random.Random) -> list[Turn]:
    """Plus, minus and times, perhaps going on from the result."""
    sign = rng.choice("++-*")
    a, b, result = _pair(sign, rng)
    left, right = (
        WORDS[n] if max(a, b) <= 20 and rng_words else str(n) for n in (a, b) for rng_words in (rng.random() < 0.2,)
    )
    said = left + rng.choice(_SIGNS[sign]) + right
    ask = rng.choice(_ASK[:-1])
    name = {"+": "plus", "-": "minus", "*": "times"}[sign]
    answer = rng.choice(
        (f"{a} {name} {b} is {result}.", f"{a} {name} {b} is {result}.", f"That is {result}.", f"It is {result}.")
    )
    turns = [(typed(ask.format(said), rng), answer)]
    while rng.random() < 0.25 and result <= 60:
        sign = rng.choice("+-")
        b = rng.randint(1, 10 if sign == "+" else max(1, min(10, result)))
        if sign == "-" and b > result:
            break
        before, result = result, result + b if sign == "+" else result - b
        verb = "plus" if sign == "+" else "minus"
        asked = rng.choice(
            (
                f"and {verb} {b}",
                f"{verb} {b}",
                f"and if I {'add' if sign == '+' else 'take away'} {b}",
                f"now {'add' if sign == '+' else 'subtract'} {b}",
            )
        )
        turns.append((typed(asked, rng), f"{before} {verb} {b} is {result}."))
    return turns


def stories(rng: random.Random) -> list[Turn]:
    """A sum in a sentence."""
    who, what = (
        any_of("person", rng),
        rng.choice(
            ("apples", "books", "coins", "eggs", "balls", "cookies", "stones", "pencils", "cats", "flowers", "nuts")
        ),
    )
    a, b = rng.randint(2, 12), rng.randint(1, 10)
    if rng.random() < 0.5:
        text = rng.choice(
            (
                f"{who} has {a} {what} and gets {b} more. How many {what} does {who} have",
                f"I have {a} {what} and buy {b} more. How many {what} do I have",
            )
        )
        count, rule = a + b, f"{a} plus {b} is {a + b}"
    else:
        b = min(a - 1, b)
        text = rng.choice(
            (
                f"{who} has {a} {what} and gives away {b}. How many {what} are left",
                f"I have {a} {what} and lose {b}. How many {what} do I have left",
            )
        )
        count, rule = a - b, f"{a} minus {b} is {a - b}"
    answer = rng.choice(
        (f"{rule}, so there are {count}.".replace("are 1.", "is 1."), f"That makes {count}, since {rule}.")
    )
    return [(typed(text, rng, exact=True).removesuffix(".").removesuffix("..."), answer)]


def halves(rng: random.Random) -> list[Turn]:
    """Half and double, more and less, odd and even, before and after."""
    n, m = rng.randint(1, 50), rng.randint(1, 100)
    other = rng.choice([x for x in range(1, 101) if x != m])
    high, low = max(m, other), min(m, other)
    kinds = (
        (("what is half of {0}", "half of {0}"), f"Half of {2 * n} is {n}.", 2 * n),
        (("what is twice {0}", "what is double {0}", "double of {0}"), f"Twice {n} is {2 * n}.", n),
        (("is {0} odd or even", "is {0} even", "is {0} an odd number"), f"{m} is {'odd' if m % 2 else 'even'}.", m),
        (("what number comes after {0}", "what comes after {0}", "which number is after {0}"), f"{m + 1} comes after {m}.", m),
        (("what number comes before {0}", "what comes before {0}"), f"{m - 1} comes before {m}.", m),
        ((f"which is bigger, {m} or {other}", f"what is more, {m} or {other}", f"is {m} bigger than {other}", f"is {m} more than {other}"), f"{high} is bigger than {low}.", m),
        ((f"which is smaller, {m} or {other}", f"is {m} smaller than {other}", f"is {m} less than {other}"), f"{low} is smaller than {high}.", m),
        (("square of {0}", "what is {0} squared"), f"{n % 13} times {n % 13} is {(n % 13) ** 2}.", n % 13),
    )  # fmt: skip
    asks, answer, given = rng.choice(kinds)
    return [(typed(rng.choice(asks).format(given), rng), answer)]


def counting(rng: random.Random) -> list[Turn]:
    """One, two, three."""
    if rng.random() < 0.4:
        last = rng.randint(3, 12)
        row = [WORDS[n] for n in range(1, last + 1)]
        ask = rng.choice(
            (
                f"count to {last}",
                f"count to {WORDS[last]}",
                f"can you count to {last}",
                f"please count to {last}",
                f"count from one to {WORDS[last]}",
            )
        )
        return [(typed(ask, rng), ", ".join(row[:-1]).capitalize() + f" and {row[-1]}.")]
    if rng.random() < 0.3:
        last = rng.choice((3, 5, 10))
        row = [WORDS[n] for n in range(last, -1, -1)]
        return [
            (
                typed(rng.choice((f"count down from {last}", f"count backwards from {WORDS[last]}")), rng),
                ", ".join(row).capitalize() + ".",
            )
        ]
    step, start = rng.choice((1, 1, 2, 2, 3, 5, 10)), rng.randint(1, 20)
    if step in (5, 10):
        start = step * rng.randint(1, 4)
    row = [start + step * n for n in range(4)]
    shown = ", ".join(map(str, row[:3]))
    return [
        (
            typed(
                rng.choice(
                    (f"continue: {shown}", f"what comes next: {shown}", f"{shown}, what is next", f"{shown}, ...")
                ),
                rng,
                exact=True,
            ),
            f"The next number is {row[3]}.",
        )
    ]


_HARD = (
    "{big} plus {big2}", "{big} + {big2}", "{big}+{two}", "{big} minus {big2}", "{big} - {two}", "{big}*{two}", "{big} times {two}",
    "{two} times {two2}", "{two} * {two2}", "{two}x{two2}", "{two} x {two2}", "{big} divided by {one}", "{two} divided by {one}",
    "{two} / {one}", "{big}/{two}", "{two}/{one}", "{one}.{one2} + {one3}.{one}", "{two}.{one} minus {one2}", "{one}.{one2} times {one3}",
    "{one} - {one2}.{one3}", "{one} + {one2} * {one3}", "{two} + {one} * {one2} - {one3}", "{one} * {one2} + {one3} * {one}",
    "({one} + {one2}) * {one3}", "({one}+{one2})*({one3}+{one})", "{two} - ({one} + {one2})", "{one} times {one2} times {one3}",
    "{one} to the power of {one2}", "{one}^{one2}", "{two} cubed", "{one} factorial", "{one}!", "{two} percent of {big}", "{two}% of {big}",
    "the square root of {big}", "the root of {two}", "sqrt({big})", "the cube root of {big}", "log({big})", "sin({two})", "cos {two} degrees",
    "the sine of {two} degrees", "{big} modulo {one}", "{one}/{one2} + {one3}/{one}", "one third of {big}", "the sum of {big} and {big2}",
    "the product of {two} and {two2}", "the difference of {big} and {big2}", "pi times {two}", "{big} squared", "the average of {two}, {two2} and {big}",
)  # fmt: skip
_HARD_TEXTS = (
    "solve {one}x + {one2} = {two}", "solve x^2 + {one}x = {two}", "what is x if {one}x = {two}", "divide {big} by {one}", "divide {two} by {one}",
    "add {big} and {one}", "add {big} and {big2}", "multiply {two} by {two2}", "subtract {big} from {big2}", "a car drives {big} km in {one} hours, how fast is it",
    "a train leaves at {one} and drives {two} km an hour, when does it arrive", "convert {two} miles to kilometres", "how many kilometres are {two} miles",
    "convert {two} celsius to fahrenheit", "how many pounds are {two} kilos", "how many minutes are in {two} hours", "how many hours are in {two} days",
    "how many seconds are in {two} minutes", "if {two} apples cost {one} euros, what do {two2} apples cost", "what is the area of a circle with radius {one}",
    "factor {big}", "is {big} a prime number", "what is {big} in binary", "how much is {two} dollars in euros", "I pay {big} euros and {two}% tax, how much is that",
    "convert {big} grams to pounds", "{big} plus {big2} minus {two}", "how many days are in {one} years",
)  # fmt: skip


def too_hard(rng: random.Random) -> list[Turn]:
    """What is out of reach, and is said to be: no answer holds a number."""
    values = {name: str(rng.randint(2, 9)) for name in ("one", "one2", "one3")}
    values |= {name: str(rng.randint(13, 99)) for name in ("two", "two2")}
    values |= {name: str(rng.randint(101, rng.choice((500, 999, 9999, 999999)))) for name in ("big", "big2")}
    if rng.random() < 0.65:
        question = rng.choice(_ASK[:-1]).format(rng.choice(_HARD).format(**values))
    else:
        question = rng.choice(_HARD_TEXTS).format(**values)
    answer = rng.choice(
        (
            "That is too hard for me. I can only do small sums.",
            "That is too hard for me, I am sorry. My head is small.",
            "I am sorry, I can only add, subtract and multiply small numbers.",
            "I cannot calculate that. I can do small sums only.",
        )
    )
    return [(typed(question, rng, exact=rng.random() < 0.7), answer)]


def numbers(rng: random.Random) -> list[Turn]:
    """Any of these."""
    return rng.choices((sums, stories, halves, counting, too_hard), (6, 1.5, 2, 1, 4))[0](rng)
