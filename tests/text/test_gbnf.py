"""GBNF is translated to Lark token by token; errors name the line and the cause."""

import pytest

from rwkv_gpu.errors import BadGrammar
from rwkv_gpu.text.gbnf import to_lark, token_names

IDS = {"<think>": 7}


@pytest.mark.parametrize(
    ("source", "lark"),
    [
        ('root ::= "a"', 'start: "a"'),
        ('root ::= "a" |', 'start: "a" | ""'),
        ("root ::=", 'start:  ""'),
        ('root ::= ( | "a") ()', 'start: ( "" | "a" ) ( "" )'),
        ('root ::= ("a" | (.))', 'start: ( "a" | ( /(?s:.)/ ) )'),
        ('root ::= "a"{2,3} "b"* "c"? # end', 'start: "a" {2,3} "b" * "c" ?'),
        (r'root ::= "\x41\u00e9\U0001f600\n\""', 'start: "A\u00e9\U0001f600\\n\\""'),
        (r'root ::= "\ud7ff\ue000\U0010ffff"', 'start: "\ud7ff\ue000\U0010ffff"'),
        ("root ::= [a-c]", r"start: /[\x{61}-\x{63}]/"),
        ("root ::= [a-a]", r"start: /[\x{61}-\x{61}]/"),
        ("root ::= [^a-]", r"start: /[^\x{61}\x{2d}]/"),
        ("root ::= [-a]", r"start: /[\x{2d}\x{61}]/"),
        (r"root ::= [a\-c]", r"start: /[\x{61}\x{2d}\x{63}]/"),
        ("root ::= [a-c-e]", r"start: /[\x{61}-\x{63}\x{2d}\x{65}]/"),
        (r"root ::= [\x41-\x43z]", r"start: /[\x{41}-\x{43}\x{7a}]/"),
        ("root ::= <think> !<think> <[12]> !<[12]>", "start: <[7]> <[^7]> <[12]> <[^12]>"),
        ('root ::= x y\nx ::= "a"\ny ::= x | x x', 'start: X Y\nX: "a"\nY: X | X X'),
        ('root ::= x y\nx ::= "a" x | ""\ny ::= x "b"', 'start: x y\nx: "a" x | ""\ny: x "b"'),
        ("root ::= x y\nx ::= <think>\ny ::= x | z\nz ::= [z]", "start: x y\nx: <[7]>\ny: x | Z\nZ: /[\\x{7a}]/"),
        ('root ::= start 1\nstart ::= "a"\n1 ::= root', 'start: START_2_1 r1\nSTART_2_1: "a"\nr1: start'),
        ('root ::= a-b a_b A_B\na-b ::= "x"\na_b ::= "y"\nA_B ::= "z"',
         'start: A_B A_B_2_2 A_B_2_3\nA_B: "x"\nA_B_2_2: "y"\nA_B_2_3: "z"'),
    ],
)  # fmt: skip
def test_a_grammar_is_translated(source, lark):
    assert to_lark(source, IDS) == lark


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('a ::= "b"', "there is no rule 'root'"),
        ("root ::= a", "rule 'a' is used but not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2, at 'root ::= \"b\"': rule 'root' is defined twice"),
        ('"a"', "line 1, at '\"a\"': a rule begins with its name"),
        ('::= "a"', "comes without the name of a rule"),
        ('root ::= "a" ::= "b"', "comes without the name of a rule"),
        ('root ::= "a"\n\n  %', "line 3, at '%': this is not GBNF"),
        ('root ::= ("a"', "the parentheses of rule 'root' do not match"),
        ('root ::= "a")(', "the parentheses of rule 'root' do not match"),
        ("root ::= [b-a]", "the range b-a is empty"),
        ("root ::= []", "a set of characters is empty"),
        ("root ::= [^]", "a set of characters is empty"),
        (r'root ::= "\ud800"', "is not a character"),
        (r'root ::= "\udfff"', "is not a character"),
        (r'root ::= "\U00110000"', "is not a character"),
        (r'root ::= "\q"', "is not an escape of GBNF"),
        ("root ::= <other>", "<other> is not one token of this model"),
    ],
)
def test_an_error_has_its_line_and_cause(source, message):
    with pytest.raises(BadGrammar) as caught:
        to_lark(source, IDS)
    assert message in str(caught.value)


def test_texts_in_angle_brackets_may_name_tokens():
    long = "x" * 64
    assert token_names(f"<a> !<b c> <[12]> <{long}> <{long}x> <a") == {"<a>", "<b c>", f"<{long}>"}
