"""Any way of cutting a text into pieces."""

from collections.abc import Sequence

from hypothesis import strategies as st


def cuts() -> st.SearchStrategy[list[int]]:
    """Places to cut at, some of them beyond the end."""
    return st.lists(st.integers(0, 60), max_size=12)


def cut(text: str, places: Sequence[int]) -> list[str]:
    """The pieces, some of them empty."""
    ends = [*sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
