"""Images within tokens: every range of a sequence is compared with a list of the kind of each token."""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine.media import IMAGE, Span, Spans, image_ids, media_inputs
from rwkv_gpu.ops.media import ENDS, TEXT

WIDTH = 2


@dataclass(frozen=True)
class Picture:
    tokens: int
    advance: int
    columns: int
    identity: bytes
    whole: str = ""
    numbered: bool = False


FLAT, PLANE, LAST = Picture(3, 3, 0, b"flat"), Picture(6, 3, 3, b"plane"), Picture(2, 1, 2, b"last", "all")
FRAMED = Picture(8, 8, 3, b"framed", numbered=True)  # two lines of two rows and an end each, within two rows
LAYOUT = [None, FLAT, None, None, PLANE, LAST, FRAMED, None]  # a token of text, or an image
EYES = SimpleNamespace(
    widths={"rows": WIDTH},
    angles=None,
    rows=lambda image, salt: {
        "rows": np.arange(image.tokens * WIDTH, dtype=np.float32).reshape(-1, WIDTH) + image.tokens + salt
    },
)


def labels() -> list[tuple[Picture, int] | None]:
    """Returns the image and the row of each token."""
    parts = [[None] if one is None else [(one, row) for row in range(one.tokens)] for one in LAYOUT]
    return list(itertools.chain(*parts))


def spans(**options) -> Spans:
    return Spans([Span(at, one[0]) for at, one in enumerate(labels()) if one and one[1] == 0], **options)


def divides(at: int) -> bool:
    """True if a bound lies within an image."""
    return at < len(labels()) and labels()[at] is not None and labels()[at][1] > 0


CUTS = list(itertools.combinations_with_replacement(range(len(labels()) + 1), 2))
RANGES = [(start, end) for start, end in CUTS if start < end]


def test_each_token_belongs_to_its_image():
    found = spans()
    for at, one in enumerate(labels()):
        span = found.within(at)
        assert (span and (span.image, at - span.start)) == one
        whole = one is not None and bool(one[0].whole)  # sounds never are
        assert found.divides(at) == (whole and one[1] > 0)
        assert found.least(at) == (span.end - at if whole else 0)
    assert not found.divides(len(labels())) and not found.least(len(labels()))


def test_a_chunk_ends_before_an_image_of_which_it_can_read_only_a_part():
    for start, end in RANGES:
        possible = [at for at in range(start, end + 1) if at == len(labels()) or not spans().divides(at)]
        assert spans().end_of(start, end) == max(possible, default=start)


def test_the_images_of_a_range_are_encoded_once_and_one_by_one():
    for start, end in RANGES:
        images, encoded = spans(), []
        while (image := images.unencoded(start, end)) is not None:
            encoded.append(image)
            images.encoded.add(image.identity)
        assert encoded == [*dict.fromkeys(one[0] for one in labels()[start:end] if one)]


def test_rows_of_an_image_that_is_read_as_a_whole_see_its_last_row():
    for start, end in RANGES:
        if not spans().divides(end):
            last = [at - one[1] + one[0].tokens if one and one[0].whole else at + 1 for at, one in enumerate(labels())]
            assert spans().ends(start, end).tolist() == last[start:end]


def test_a_prompt_that_is_read_whole_is_divided_by_no_chunk_and_sees_its_last_row():
    for length in range(4):
        whole = Spans()
        whole.prompt = length
        assert bool(whole) == (length > 0)
        for start, end in RANGES:
            assert whole.divides(end) == (0 < end < length) and whole.least(start) == max(0, length - start)
            assert whole.end_of(start, end) == (start if 0 < end < length else end)
            assert whole.ends(start, end).tolist() == [length if at < length else at + 1 for at in range(start, end)]
            given = media_inputs(SimpleNamespace(rows=end - start), [(whole, start, end)], None)
            assert [*given] == ([ENDS["all"]] if start < length else [])
            cut = Spans()
            cut.prompt = length
            assert cut.cut(start, end) == (start, end)
            assert cut.prompt == sum(1 for at in range(length) if not start <= at < end)


def test_ids_of_images_are_replaced_by_zeros_in_text():
    ids = [image_ids(one[0])[one[1]] if one else 7 for one in labels()]
    assert all((token >= IMAGE) == (one is not None) for token, one in zip(ids, labels(), strict=True))
    for start, end in RANGES:
        hidden = [0 if one else 7 for one in labels()[start:end]]
        assert list(spans().text(ids[start:end], start)) == hidden


def test_a_cut_removes_whole_images():
    for asked in RANGES:
        images = spans()
        start, end = images.cut(*asked)
        assert not divides(start) and not divides(end)
        assert start == max(at for at in range(asked[0] + 1) if not divides(at))
        assert end == min(at for at in range(asked[1], len(labels()) + 1) if not divides(at))
        left = labels()[:start] + labels()[end:]
        assert [images.within(at) and images.within(at).image for at in range(len(left))] == [
            one and one[0] for one in left
        ]
        assert [span.start for span in images.spans] == [at for at, one in enumerate(left) if one and one[1] == 0]


def test_positions_of_any_range_equal_those_of_a_walk_through_all_tokens():
    walked, at = [], 0
    for one in LAYOUT:
        for row in range(one.tokens if one else 1):
            plane = (0, row // one.columns, row % one.columns, 0) if one and one.columns else (row,) * 4
            walked.append([at + step for step in plane])
            if one is FRAMED:  # column, line and number of the image, except at its ends
                line, column = divmod(row - 1, 3)
                walked[-1] = [at + row] * 4 if row in (0, 7) else [at + row, column, line, 3]
        at += one.advance if one else 1
    for start, end in RANGES:
        assert spans().positions(start, end).tolist() == walked[start:end]


@pytest.mark.parametrize("before", [0, 2])
def test_a_step_has_the_rows_of_its_images_as_inputs(before):
    for start, end in RANGES:
        batch = SimpleNamespace(rows=before + end - start)
        if spans().divides(end):
            continue
        given = media_inputs(batch, [(Spans(), 5, 5 + before), (spans(salt=9), start, end)], EYES)
        here = labels()[start:end]
        whole = any(one and one[0].whole for one in here)
        assert any(here) == bool(given) and given.keys() & {*ENDS.values()} == ({ENDS["all"]} if whole else set())
        if whole:
            assert given[ENDS["all"]][:, 0].tolist() == [*range(6, 6 + before), *spans().ends(start, end)]
        if given:
            rows = [EYES.rows(one[0], 9)["rows"][one[1]] if one else np.zeros(WIDTH) for one in here]
            assert np.array_equal(given["rows"], [*np.zeros((before, WIDTH)), *rows])
            assert given[TEXT][:, 0].tolist() == [1] * before + [0 if one else 1 for one in here]
