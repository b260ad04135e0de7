"""Ends an answer in JSON before its budget does. Runs in the helper process, together with the answer's matcher.

It keeps a way to end the answer, as tokens. If exactly that many tokens are left, only the next of them is allowed. If
a few more are left, only tokens known to leave time for an end are allowed; if many are left, all tokens except those
known to leave too little time. The way is short, but not proven to be the shortest: strings with a pattern may have a
shorter one. Of several similar tokens (`abc`, `xyz`), only one is tested, and its result is used for all. So a pattern
that distinguishes them can make an answer miss its end.
"""

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

LONGEST = 4096  # bytes of an end that is searched for
NEAR = 32  # if more tokens are left than the end takes plus this, untested tokens are allowed
FAR = 256  # with this many tokens left, and four times what the end takes, tokens are not tested
SEARCH_INTERVAL = 16  # an end is searched again after this many tokens
CLASSES = 48  # classes of tokens tested, those with the most tokens first
SEARCHES = 8  # tokens per step for which another end is searched
SUPERFLUOUS = 8  # first tokens of the known end that other tokens may have made superfluous
TRIES = 1024  # bytes tried for each token, to find those that complete strings with patterns or minimum lengths
BRANCHES = 256  # of them, the first may be alternatives
KNOWN = 64  # masks whose effect on the end is remembered
DIGITS = 24  # digits of a number in a row
AFTER_DIGITS = (*(bytes([byte]) for byte in b"0123456789.eE,}] \t\r\n<\xff"), b"")  # first bytes; control tokens: 0xFF
EACH = 64  # if fewer tokens are allowed, each of them is tested
# Bytes, sorted by how soon they end JSON: outside strings, and inside.
OUTSIDE = b'}],ntf0123456789":-.eE+[{'
INSIDE = b'"'
# Inside a string that may not end yet, a byte of each kind is tried, and all separators
SEPARATORS = b"@.:/-"
LIKE = (
    *(bytes([byte]) for byte in b" _,;+=#?&%~!$*'()[]{}<>|^`"),
    b"abcdefghijklmnopqrstuvwxyz",
    b"0123456789",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
)
ESCAPED = b'n"\\/bfrtu'
# Properties that make tokens similar: letters, digits, other characters, and bytes of incomplete characters.
_KINDS = (
    (re.compile("[A-Za-z]+"), "a"),
    (re.compile("[0-9]+"), "0"),
    (re.compile("[\x80-\ud7ff\ue000-\U0010ffff]+"), "é"),
    (re.compile("[\udc80-\udcbf]+"), "\udc80"),
    (re.compile("[\udcc0-\udcdf]"), "\udcc0"),
    (re.compile("[\udce0-\udcef]"), "\udce0"),
    (re.compile("[\udcf0-\udcff]"), "\udcf0"),
)
Split = Callable[[bytes], list[int]]


class Text:
    """Position within JSON text: inside a string or not, after a backslash or not."""

    def __init__(self, inside: bool = False, escaped: bool = False) -> None:
        self.inside, self.escaped = inside, escaped

    def feed(self, data: bytes) -> None:
        """Advances by some bytes."""
        for byte in data:
            if self.escaped:
                self.escaped = False
            elif byte == 0x5C:
                self.escaped = self.inside
            elif byte == 0x22:
                self.inside = not self.inside

    def copy(self) -> "Text":
        """Returns a copy for another path."""
        return Text(self.inside, self.escaped)

    @property
    def order(self) -> bytes:
        """The bytes to try first."""
        return ESCAPED if self.escaped else INSIDE if self.inside else OUTSIDE


class Kinds:
    """Tokens of one vocabulary by similarity; a set of tokens is an integer with one bit per token."""

    def __init__(self, tokens: list[bytes], split: Split) -> None:
        self.tokens = tokens
        self.split = split
        self.bytes = {byte: ids[0] for byte in range(256) if (ids := split(bytes([byte])))}

    @cached_property
    def digits(self) -> int:
        """The tokens that begin with a digit."""
        return _bits([token for token, piece in enumerate(self.tokens) if piece[:1].isdigit()])

    @cached_property
    def text(self) -> int:
        """The tokens that cannot follow a digit of a number in JSON, nor end the answer."""
        return _bits([token for token, piece in enumerate(self.tokens) if piece[:1] not in AFTER_DIGITS])

    @cached_property
    def sets(self) -> list[int]:
        """The classes with the most tokens, and the structural ones."""
        return [*self._sets[0].values()]

    @cached_property
    def structure(self) -> list[int]:
        """The classes that begin or end a part of JSON."""
        return [self._sets[0][kind] for kind in self._sets[1]]

    @cached_property
    def _sets(self) -> tuple[dict[str, int], list[str]]:
        """Tokens by class as sets of bits, and the classes of `structure`. Computed late, because it is slow."""
        found: dict[str, list[int]] = {}
        for token, piece in enumerate(self.tokens):
            kind = piece.decode("utf-8", "surrogateescape")
            for pattern, letter in _KINDS:
                kind = pattern.sub(letter, kind)
            found.setdefault(kind, []).append(token)
        largest = sorted(found, key=lambda kind: -len(found[kind]))[:CLASSES]
        structure = [kind for kind in found if 0 < len(kind) < 4 and not kind.strip('"}],:{[ ')] + ["0"]
        sets = {kind: _bits(found.get(kind, ())) for kind in (*largest, *structure)}
        return sets, structure


def _bits(tokens: Sequence[int]) -> int:
    """A set of tokens, as an integer with one bit for each."""
    data = bytearray(max(tokens, default=0) // 8 + 1)
    for token in tokens:
        data[token // 8] |= 1 << token % 8
    return int.from_bytes(data, "little")


class Digits:
    """Ends a number after too many digits in a row. It needs no position: elsewhere, other text is allowed, too."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds, self._row = kinds, 0

    def accept(self, token: int) -> None:
        """Advances by a generated token."""
        piece = self._kinds.tokens[token]
        row = len(piece) - len(piece.rstrip(b"0123456789"))
        self._row = row + self._row if row == len(piece) else row

    def narrow(self, matcher: Any, mask: bytes, left: int) -> bytes:  # noqa: ARG002
        """The mask without digits in a number that has too many, unless only digits may follow."""
        allowed = int.from_bytes(mask, "little") if self._row >= DIGITS else 0
        if not allowed or allowed & self._kinds.text:
            return mask
        return (allowed & ~self._kinds.digits or allowed).to_bytes(len(mask), "little")


class Closing:
    """One answer: its known end, and the distance to it. It begins after an opening text."""

    def __init__(self, kinds: Kinds, opening: bytes = b"") -> None:
        self._kinds = kinds
        self._opening, self._before = opening, b""
        self._text = Text()
        self._end: list[int] = []
        self._length = 0  # tokens of the end when it was last searched
        self._age = SEARCH_INTERVAL  # tokens since then
        self._mask = b""  # the grammar's mask at that time
        self._within = False  # whether all tokens since then are inside the same string
        self._tries = TRIES  # bytes inside strings that the searches of this token may still try
        # By mask: how many more tokens the end takes after a token
        self._longer: dict[bytes, list[tuple[int, int]]] = {}

    def accept(self, token: int) -> None:
        """Advances by a generated token."""
        piece = self._kinds.tokens[token]
        if self._opening:
            self._before, found, piece = (self._before + piece).partition(self._opening)
            self._before = self._before[1 - len(self._opening) :]
            self._opening = b"" if found else self._opening
        self._within &= self._text.inside and b'"' not in piece and b"\\" not in piece
        self._text.feed(piece)
        if self._end[:1] == [token]:
            del self._end[0]

    def narrow(self, matcher: Any, mask: bytes, left: int) -> bytes:
        """The mask without tokens after which the answer could not end within `left` tokens, including this one."""
        if self._opening:
            return mask
        self._age += 1
        if left > FAR + 4 * self._length and self._age < SEARCH_INTERVAL:
            return mask
        # Inside a string, a token changes only the number of tokens that are left.
        known = self._within and mask == self._mask and self._age < SEARCH_INTERVAL
        if self._within and not self._end and self._age < SEARCH_INTERVAL:
            return mask  # no end was found some tokens ago, in the same string
        if not known or left < self._length + NEAR:
            self._mask, self._within, self._tries = b"", True, TRIES
            length = self._find(matcher)
            if length is None or length > left or not self._end:
                if not self._end:
                    self._age = 0
                return mask
            self._age, self._length = 0, length
        if left > FAR + 4 * self._length:
            return mask
        allowed, first = int.from_bytes(mask, "little"), 1 << self._end[0]
        if left == self._length:
            kept = first
        elif left < self._length + NEAR:
            kept = first
            for alike, length in self._try(matcher, allowed, self._kinds.sets):
                kept |= alike if length < left else 0
        else:
            # Far from the end, equal masks are assumed to have equal effects on the end.
            self._mask = mask
            if mask not in self._longer:
                if len(self._longer) == KNOWN:
                    self._longer.clear()
                tried = self._try(matcher, allowed, self._kinds.structure)
                self._longer[mask] = [(alike, length - self._length) for alike, length in tried]
            kept = allowed
            for alike, more in self._longer[mask]:
                kept &= ~alike if self._length + more >= left else kept
            kept |= first
        return (kept & allowed).to_bytes(len(mask), "little")

    def _find(self, matcher: Any) -> int | None:
        """Number of tokens of the end; searched again if the known end has become invalid."""
        length, done = self._known(matcher)
        del self._end[:done]
        if length is None:
            found = self._search(matcher, self._text.copy())
            length = None if found is None else self._ends(matcher, found)
            self._end = found or []
        return length

    def _try(self, matcher: Any, allowed: int, kinds: list[int]) -> list[tuple[int, int]]:
        """Sets of tokens, each with the additional length of the end after one of them, if found."""
        tried: list[tuple[int, int]] = []
        known: dict[bytes, int | None] = {}  # lengths, by the bytes that must follow
        for alike in self._alike(allowed, kinds):
            token = (alike & -alike).bit_length() - 1
            after = matcher.deep_copy()
            if not after.consume_token(token):
                continue
            length = self._known(after)[0]
            if length is None:
                piece = self._kinds.tokens[token]
                following = piece + after.compute_ff_bytes()
                if following not in known:
                    if len(known) == SEARCHES:
                        continue
                    text = self._text.copy()
                    text.feed(piece)
                    found = self._search(after, text)
                    known[following] = None if found is None else self._ends(after, found)
                length = known[following]
            if length is not None:
                tried.append((alike, length))
        return tried

    def _alike(self, allowed: int, kinds: list[int]) -> Iterator[int]:
        """The allowed tokens in sets of similar ones, each tested by one representative."""
        if allowed.bit_count() > EACH:
            yield from (alike for kind in kinds if (alike := kind & allowed))
            return
        while allowed:
            token = allowed & -allowed
            yield token
            allowed ^= token

    def _known(self, matcher: Any) -> tuple[int | None, int]:
        """The length of the known end, and how many of its first tokens have become superfluous."""
        for done in range(min(len(self._end), SUPERFLUOUS) or 1):
            length = self._ends(matcher, self._end[done:])
            if length is not None:
                return length, done
        return None, 0

    def _ends(self, matcher: Any, tokens: list[int]) -> int | None:
        """Number of tokens that end the answer if these come next; None if they do not."""
        if not tokens:
            return 1 if matcher.is_accepting() else None
        after = matcher.deep_copy()
        if after.try_consume_tokens(tokens) < len(tokens) or not after.is_accepting():
            return None
        return len(tokens) + (not after.is_stopped())

    def _search(self, matcher: Any, text: Text) -> list[int] | None:
        """A short sequence of tokens that ends the answer; None if none is found."""
        start, matcher = matcher, matcher.deep_copy()
        taken: list[int] = []
        size = 0
        while not matcher.is_accepting():
            tokens = self._kinds.split(matcher.compute_ff_bytes()) or self._choice(matcher, text)
            if not tokens or matcher.try_consume_tokens(tokens) < len(tokens):
                return None
            added = b"".join(self._kinds.tokens[token] for token in tokens)
            text.feed(added)
            taken += tokens
            size += len(added)
            if size > LONGEST:
                return None
        joined = self._kinds.split(b"".join(self._kinds.tokens[token] for token in taken))
        return joined if self._ends(start, joined) is not None else taken

    def _choice(self, matcher: Any, text: Text) -> list[int]:
        """The next byte of a short way to the end: one that closes something, or the one with the shortest
        continuation.
        """
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        for byte in text.order:
            token = self._kinds.bytes.get(byte)
            if token is not None and allowed >> token & 1:
                return [token]
        best: tuple[int, int] | None = None
        for token in [*self._kinds.bytes.values(), *self._first(allowed)]:
            if not allowed >> token & 1:
                continue
            after = matcher.deep_copy()
            if after.consume_token(token):
                rank = (len(after.compute_ff_bytes()), token)
                best = rank if best is None else min(best, rank)
            if best is not None and best[0] == 0:
                break
        if text.inside and not text.escaped and best is not None and best[0] == 0:
            if found := self._complete(matcher, allowed):
                return found
            self._tries -= 1
        return [] if best is None or self._tries < 0 else [best[1]]

    def _complete(self, matcher: Any, allowed: int) -> list[int]:
        """Bytes after which a string may end, or the longest text that was tried.

        What leads to a new mask is continued first. So the `@` of an address is found after any number of letters.
        Equal masks are taken for equal states, except after separators.
        """
        quote = self._kinds.bytes.get(INSIDE[0], 0)
        paths: list[list[int]] = [[]]
        queue = [(0, 0, 0, matcher, allowed)]  # masks that were seen before, length, number of the path, state
        seen = {allowed}
        longest = 0
        while queue:
            repeats, length, number, matcher, allowed = heapq.heappop(queue)
            longest = max(longest, number, key=lambda path: len(paths[path]))
            following: set[int] = set()
            for token in self._candidates(allowed):
                if self._tries <= TRIES - BRANCHES:
                    return paths[longest]
                self._tries -= 1
                after = matcher.deep_copy()
                if not after.consume_token(token):
                    continue
                mask = int.from_bytes(after.compute_bitmask(), "little")
                if mask >> quote & 1 or after.is_accepting():
                    return [*paths[number], token]
                if mask not in following or self._kinds.tokens[token] in SEPARATORS:
                    following.add(mask)
                    heapq.heappush(queue, (repeats + (mask in seen), length + 1, len(paths), after, mask))
                    paths.append([*paths[number], token])
            seen |= following
        return paths[longest]

    def _candidates(self, allowed: int) -> list[int]:
        """The allowed separators, and the first allowed byte of each kind."""
        bytes_, found = self._kinds.bytes, []
        for alike in (*LIKE, *(bytes([byte]) for byte in SEPARATORS)):
            tokens = (bytes_[byte] for byte in alike if byte in bytes_)
            found += [token for token in tokens if allowed >> token & 1][:1]
        return found

    def _first(self, allowed: int) -> list[int]:
        """The allowed token with the lowest id, if no single byte is allowed."""
        return [(allowed & -allowed).bit_length() - 1] if allowed else []
