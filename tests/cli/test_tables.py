"""Markdown tables fit the terminal, and lose no word."""

import pytest
from rich.cells import cell_len

from rwkv_gpu.cli.tables import NARROWEST, fitted, rendered, table

WIDE = [
    "| what | chosen | instead of |",
    "|---|:-:|--:|",
    "| a | some **bold** words that go on for a while | `code` here, 日本語日本語日本語 and more |",
    "| a-word-that-is-longer-than-any-column-of-a-narrow-terminal | x | |",
    "| | 😀😀😀😀😀😀😀😀 |",
]


def shown(lines, width):
    return "".join(text for text, _ in table(lines, width)).split("\n")[:-1]


@pytest.mark.parametrize("width", range(3 * NARROWEST + 6, 140, 5))
def test_a_table_is_never_wider_than_the_terminal_and_loses_nothing(width):
    lines = shown(WIDE, width)
    assert max(map(cell_len, lines)) <= width
    columns = list(zip(*(line.split("│") for line in lines if "┼" not in line), strict=True))
    text = ["".join("".join(column).split()) for column in columns]
    assert text[0] == "whataa-word-that-is-longer-than-any-column-of-a-narrow-terminal"
    assert text[1] == "chosensomeboldwordsthatgoonforawhilex" + "😀" * 8
    assert text[2] == "insteadofcodehere,日本語日本語日本語andmore"


def test_words_that_fit_their_column_stay_whole():
    words = {word for line in shown(WIDE[:3], 60) for word in line.replace("│", " ").split()}
    assert {"some", "bold", "words", "while", "instead"} <= words


def test_narrow_columns_stay_and_wide_ones_share_the_rest():
    assert fitted([3, 50, 50], 66) == [3, 28, 29]
    assert fitted([3, 4, 5], 80) == [3, 4, 5]


def test_where_there_is_no_room_at_all_the_lines_are_as_they_were():
    assert shown(WIDE, 10) == WIDE


def test_columns_stand_at_the_side_that_their_rule_says():
    lines = ["| a | b | c |", "|---|--:|:-:|", "| 1 | 2 | 3 |", "| long | longer | longest |"]
    assert shown(lines, 80)[2] == "1    │      2 │    3   "


def test_a_row_of_empty_cells_is_a_row():
    assert shown(["| a | b |", "|---|---|", "| | |", "| 1 | - |"], 80)[2:] == ["  │  ", "1 │ -"]


def test_a_text_for_a_terminal_has_its_tables_drawn_and_the_rest_as_it_was():
    text = "# head\n\n| a | b |\n|---|--:|\n| 1 | 22 |\n\nlast"
    assert rendered(text, 80) == "# head\n\na │  b\n──┼───\n1 │ 22\n\nlast"
