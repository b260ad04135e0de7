"""Strategies that cut a text into pieces in any way."""

from collections.abc import Sequence

from hypothesis import strategies as st


def cuts() -> st.SearchStrategy[list[int]]:
    """Generates places to cut at, some of them beyond the end."""
    return st.lists(st.integers(0, 60), max_size=12)


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Returns the pieces, some of them empty."""
    ends = [*sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
