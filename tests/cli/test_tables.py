"""Markdown tables fit the terminal without losing a word."""

import pytest
from rich.cells import cell_len

from rwkv_gpu.cli.printing import folded, rendered
from rwkv_gpu.cli.tables import fitted, table, wrapped

WIDE = [
    "| what | chosen | instead of |",
    "|---|:-:|--:|",
    "| a | some **bold** words that go on for a while | `code` here, 日本語日本語日本語 and more |",
    "| a-word-that-is-longer-than-any-column-of-a-narrow-terminal | x | |",
    "| | 😀😀😀😀😀😀😀😀 |",
]


def shown(lines, width):
    return "".join(text for text, _ in table(lines, width)).split("\n")[:-1]


@pytest.mark.parametrize("width", range(20, 140, 5))
def test_a_table_is_never_wider_than_the_terminal_and_loses_nothing(width):
    lines = shown(WIDE, width)
    assert max(map(cell_len, lines)) <= max(width, 62)  # the longest word takes a whole line and is not split
    text = "".join("".join(line.replace("│", "") for line in lines).split())
    for word in ("what", "some", "bold", "words", "while", "code", "more"):
        assert word in text
    assert text.count("😀") == 8
    assert text.count("日") == 3


def test_a_column_keeps_its_text_in_order():
    lines = shown(WIDE, 80)
    columns = list(zip(*(line.split("│") for line in lines if "┼" not in line), strict=True))
    text = ["".join("".join(column).split()) for column in columns]
    assert text[0] == "whataa-word-that-is-longer-than-any-column-of-a-narrow-terminal"
    assert text[1] == "chosensomeboldwordsthatgoonforawhilex" + "😀" * 8
    assert text[2] == "insteadofcodehere,日本語日本語日本語andmore"


def test_words_that_fit_their_column_stay_whole():
    words = {word for line in shown(WIDE[:3], 60) for word in line.replace("│", " ").split()}
    assert {"some", "bold", "words", "while", "instead"} <= words


def test_narrow_columns_keep_their_width_and_wide_ones_share_the_rest():
    assert fitted([3, 50, 50], [3, 4, 4], 60) == [3, 28, 29]
    assert fitted([3, 4, 5], [1, 1, 1], 80) == [3, 4, 5]
    assert fitted([30, 50], [10, 16], 25) is None


def test_if_words_do_not_fit_their_columns_each_row_becomes_lines_of_name_and_value():
    lines = ["| test | tok/s | of bandwidth |", "|---|--:|--:|", "| pp512 | 13,218 ± 37.2 | 38.4% |", "| tg | 888 | |"]
    assert shown(lines, 24) == [
        "test: pp512",
        "tok/s: 13,218 ± 37.2",
        "of bandwidth: 38.4%",
        "",
        "test: tg",
        "tok/s: 888",
    ]


def test_an_empty_column_is_left_out_of_our_own_tables_but_not_of_those_of_a_model():
    lines = ["| a | b | c |", "|---|---|---|", "| 1 | | 3 |"]
    assert rendered("\n".join(lines), 80).split("\n")[0] == "a │ c"
    assert shown(lines, 80)[0].split("│")[1].strip() == "b"


def test_lines_break_between_words_and_a_long_word_stays_whole():
    path = "/a/path/that/is/longer/than/the/line.gguf"
    assert rendered(f"  see {path} for more", 20).split("\n") == ["  see", f"  {path}", "  for more"]
    assert [*folded("label   some long value", 16, 8)] == ["label   some", "        long", "        value"]


def test_columns_are_aligned_by_their_rule():
    lines = ["| a | b | c |", "|---|--:|:-:|", "| 1 | 2 | 3 |", "| long | longer | longest |"]
    assert shown(lines, 80)[2] == "1    │      2 │    3   "


def test_a_row_of_empty_cells_is_a_row():
    assert shown(["| a | b |", "|---|---|", "| | |", "| 1 | - |"], 80)[2:] == ["  │  ", "1 │ -"]


def test_a_terminal_shows_tables_with_lines_and_other_text_unchanged():
    text = "# head\n\n| a | b |\n|---|--:|\n| 1 | 22 |\n\nlast"
    assert rendered(text, 80) == "# head\n\na │  b\n──┼───\n1 │ 22\n\nlast"


def test_a_word_with_parts_of_different_styles_is_not_split_between_them():
    cell = [("the time", ""), ("_mix", "italic"), (" of ", ""), ("all", "bold"), (", and", "")]
    lines = ["".join(text for text, _ in line).rstrip() for line in wrapped(cell, 9)]
    assert lines == ["the", "time_mix", "of all,", "and"]
    split = ["".join(text for text, _ in line) for line in wrapped([("abcdef", ""), ("ghijkl", "bold")], 5)]
    assert split == ["abcde", "fghij", "kl"]
