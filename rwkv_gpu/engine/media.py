"""Images within the tokens of a sequence: their rows, their positions, and the inputs that a step needs for them.

An image has as many ids as rows. These ids are digests of its pixels and lie above every vocabulary, so that stored
prefixes are found by image as well. Kernels never see them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..models.registry import Contents
from ..ops.batch import Batch
from ..ops.media import ANGLES, ENDS, TEXT, cos_and_sin
from ..ops.vocabulary import Attention, Rope, Whole, found

IMAGE = 1 << 62  # set in the ids of images
Floats = npt.NDArray[np.float32]


class Image(Protocol):
    """An image that is ready for the tower."""

    @property
    def tokens(self) -> int:
        """The rows of the image."""

    @property
    def advance(self) -> int:
        """The positions of the image."""

    @property
    def columns(self) -> int:
        """Number of rows in one line of the image if positions are two-dimensional; else 0."""

    @property
    def identity(self) -> bytes:
        """Digest of its pixels and of how they were prepared."""

    @property
    def whole(self) -> Whole:
        """Layers in which each of its rows attends to all of them."""

    @property
    def numbered(self) -> bool:
        """True if positions in its plane count from 0, except around it, and its number is a position, too."""


class MediaEncoder(Protocol):
    """Encodes images as input rows of one language model."""

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of each kind of row that it computes, by name: embeddings, and rows that layers add."""

    @property
    def angles(self) -> "PlaneRope | None":
        """How rows with two-dimensional positions are rotated."""

    def rows(self, image: Any, salt: int = 0) -> Mapping[str, Floats]:
        """The rows of an image by name, [R, D] each.

        Rows of an earlier equal image are reused if it has the same salt.
        """

    def advance(self, image: Any, salt: int = 0) -> bool:
        """Submits the next part of the work on an image. True if its rows are ready, so that `rows` need not wait."""


@dataclass(frozen=True)
class PlaneRope:
    """A rotation by four positions (M-RoPE): time, row, column and time; see `Image.numbered` for others."""

    rope: Rope
    sections: tuple[int, ...]  # pairs that turn by each
    interleaved: bool  # True if neighbouring pairs rotate by different coordinates

    @cached_property
    def axes(self) -> npt.NDArray[np.int64]:
        """The position that each pair of dimensions is rotated by."""
        pairs = np.arange(self.rope.dims // 2)
        if not self.interleaved:
            return np.searchsorted(np.cumsum(self.sections), pairs % sum(self.sections), side="right")
        axes = pairs % 3
        return np.where(pairs < 3 * np.array(self.sections)[axes], axes, 0)

    def angles(self, positions: npt.NDArray[np.int64]) -> Floats:
        """Cosines and sines of all pairs, for positions [T, 4]. [T, 2 · pairs]"""
        turned = positions[:, self.axes] * np.array(self.rope.frequencies())
        return cos_and_sin(turned, self.rope.magnitude)


def rope_of(model: Contents) -> Rope | None:
    """The one rotation of a model's attention; None if there are several or none."""
    ropes = {attention.rope for attention in found(model, Attention)}
    return ropes.pop() if len(ropes) == 1 else None


@dataclass(frozen=True)
class Span:
    """The rows of an image in a sequence."""

    start: int  # token
    image: Image

    @property
    def end(self) -> int:
        """The index of the token after the image."""
        return self.start + self.image.tokens

    def ids(self) -> list[int]:
        """The ids of the image's rows."""
        return image_ids(self.image)


def image_ids(image: Image) -> list[int]:
    """An id for each row of an image: 61 bits of a digest."""
    data = hashlib.shake_128(image.identity).digest(8 * image.tokens)
    return [IMAGE | number >> 3 for number in np.frombuffer(data, np.uint64).tolist()]


class Spans:
    """The parts of a sequence that one step must read: its images, in order, or its whole prompt."""

    def __init__(self, spans: Sequence[Span] = (), *, begun: int = 0, salt: int = 0) -> None:
        self.spans = [Span(span.start + begun, span.image) for span in spans]
        self.prompt = 0  # number of first tokens that see each other
        self.salt = salt  # the rows of its images are shared with sequences of the same salt
        self.encoded: set[bytes] = set()  # identities of images

    def __bool__(self) -> bool:
        return bool(self.spans) or self.prompt > 0

    def within(self, at: int) -> Span | None:
        """The image that a token belongs to."""
        return next((span for span in self.spans if span.start <= at < span.end), None)

    def unencoded(self, start: int, end: int) -> Image | None:
        """The next image with rows among these tokens that is not encoded yet."""
        here = (span.image for span in self.spans if start < span.end and span.start < end)
        return next((image for image in here if image.identity not in self.encoded), None)

    def divides(self, at: int) -> bool:
        """True if a chunk must not end before a token: one step must read the rest of its image or prompt."""
        span = self.within(at)
        return 0 < at < self.prompt or (span is not None and span.start < at and bool(span.image.whole))

    def least(self, start: int) -> int:
        """Rows that a chunk from `start` must have, because one step must read the rest of its image or prompt."""
        span = self.within(start)
        return max(self.prompt - start, span.end - start if span is not None and span.image.whole else 0)

    def end_of(self, start: int, end: int) -> int:
        """The end of a chunk, at most `end`: before an image or prompt that one step must read if it does not fit."""
        span = self.within(end)
        return max(start, 0 if span is None else span.start) if self.divides(end) else end

    def ends(self, start: int, end: int) -> Floats:
        """The position after the last that each token sees: its own, or the last of its image or prompt."""
        ends = np.arange(start + 1, end + 1, dtype=np.float32)
        ends[: max(0, self.prompt - start)] = self.prompt
        for span in self.spans:
            if span.image.whole and span.end > start:
                ends[max(0, span.start - start) : span.end - start] = span.end
        return ends

    def text(self, ids: Sequence[int], start: int = 0) -> Sequence[int]:
        """The ids from `start` on, with 0 for rows of images."""
        if all(span.end <= start or span.start >= start + len(ids) for span in self.spans):
            return ids
        return [0 if token & IMAGE else token for token in ids]

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """Removes the images between two tokens; moves both so that no image is divided. Returns the tokens removed."""
        for span in self.spans:
            if span.start < start < span.end:
                start = span.start
            if span.start < end < span.end:
                end = span.end
        removed = end - start
        self.prompt -= max(0, min(end, self.prompt) - start)
        left = [span for span in self.spans if span.end <= start]
        right = [Span(span.start - removed, span.image) for span in self.spans if span.start >= end]
        self.spans = [*left, *right]
        return start, end

    def positions(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Time, row, column and time of each token, if images have positions in a plane. [T, 4]

        Of numbered images: time, column, row and number.
        """
        places = np.repeat(np.arange(start, end)[:, None], 4, axis=1)
        for index, span in enumerate(self.spans):
            saved = span.image.tokens - span.image.advance
            places[max(0, span.end - start) :] -= saved
            first, last = max(span.start, start), min(span.end, end)
            if span.image.columns and first < last:
                number, here = np.arange(first, last) - span.start, places[first - start : last - start]
                if span.image.numbered:
                    inner = (number > 0) & (number < span.image.tokens - 1)
                    row, column = np.divmod(number[inner] - 1, span.image.columns)
                    here[inner, 1:] = np.stack([column, row, np.full_like(row, index)], axis=1)
                    continue
                row, column = np.divmod(number, span.image.columns)
                here[:] = here[0, 0] - number[0] + np.stack([0 * row, row, column, 0 * row], axis=1)
        return places


def media_inputs(
    batch: Batch, chunks: Sequence[tuple[Spans, int, int]], media: MediaEncoder | None
) -> dict[str, Floats]:
    """Returns the input rows of a step's images, by name, and the ends of what its rows see; none if it needs none.

    `chunks` has the images of each segment's sequence, and the range of the segment's tokens.
    """
    given: dict[str, Floats] = {}
    whole: Whole = "all" if any(spans.prompt > start for spans, start, _ in chunks) else ""
    row = 0
    for spans, start, end in chunks:
        for span in spans.spans:
            first, last = max(span.start, start), min(span.end, end)
            if first >= last:
                continue
            assert media is not None, "a sequence has images only if a model sees them"
            whole = whole or span.image.whole
            if not given:
                given = {name: np.zeros((batch.rows, width), np.float32) for name, width in media.widths.items()}
                given[TEXT] = np.ones((batch.rows, 1), np.float32)
            into, out = slice(row + first - start, row + last - start), slice(first - span.start, last - span.start)
            for name, rows in media.rows(span.image, spans.salt).items():
                given[name][into] = rows[out]
            given[TEXT][into] = 0
        row += end - start
    if whole:
        ends = [spans.ends(start, end) for spans, start, end in chunks]
        given[ENDS[whole]] = np.concatenate(ends)[:, None]
    angles = None if media is None else media.angles
    if angles is not None and any(spans.spans and spans.spans[0].start < end for spans, _, end in chunks):
        places = np.concatenate([spans.positions(start, end) for spans, start, end in chunks])
        given[ANGLES] = angles.angles(places)
    return given
