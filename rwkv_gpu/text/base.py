"""Text to token ids and back: the interface and shared code of all tokenizers."""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.special import MATCHED, SpecialTokens
from rwkv_gpu.text.vocabulary import SPACE, Kind, Vocabulary, byte_of

_HIDDEN = (Kind.CONTROL, Kind.UNKNOWN)
# Tokenization spaces removed in three passes: " ?" -> "?", " ' " -> "'", " 've" -> "'ve".
_CLEANUPS = (
    (re.compile(rb" (?=[?!.,])"), b""),
    (re.compile(rb" ' "), b"'"),
    (re.compile(rb" (?='[sm]|'re|'ve)"), b""),
)


class Tokenizer(ABC):
    """A tokenizer with a vocabulary. Ids out of range raise BadInput; any text and any bytes can be encoded.

    Subclasses define how plain bytes become ids, and how an id becomes bytes. `eot` ends a turn. For RWKV it is the
    text "\\n\\n", which alone does not end generation. `stop_ids` end generation; `suppressed` ids are never sampled.
    """

    strip_space = False  # encode added the first piece's leading space, so decode removes it
    clean_spaces = False
    keeps_text = False  # tokens contain all bytes of a text, except spaces that `takes_spaces` absorbs
    takes_spaces: frozenset[int] = frozenset()  # special tokens that absorb the spaces after them
    takes_spaces_before: frozenset[int] = frozenset()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary)
        self.bos, self.eos, self.eot = vocabulary.bos, vocabulary.eos, vocabulary.eot
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self.stop_ids, self.suppressed = vocabulary.stop_ids, vocabulary.suppressed
        self._special = SpecialTokens(vocabulary, self._special_text)

    def __repr__(self) -> str:
        """Kind and vocabulary size."""
        return f"<{type(self).__name__}: {self.vocab_size:,} tokens>"

    @abstractmethod
    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:
        """The ids of `text`, which holds no special token.

        `opening`: it is at the start, or follows a special token.
        """

    def _text_of(self, token: int) -> bytes:
        """The bytes of an ordinary token."""
        text, kind = self.vocabulary.tokens[token], self.vocabulary.kinds[token]
        if kind == Kind.NORMAL:
            return text.replace(SPACE, " ").encode()
        return byte_of(text) if kind == Kind.BYTE else b""

    def _special_text(self, token: int) -> bytes:
        return self.vocabulary.tokens[token].encode()

    def encode(
        self, text: str | bytes, *, special: bool = False, parse: bool = False, after: int | None = None
    ) -> list[int]:
        """Returns the ids of `text`. `special` adds BOS and EOS as the file specifies; `parse` matches special tokens.

        `after` is the id before the text: after a text token, no leading space is added.
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        ids: list[int] = []
        if special and self.add_bos and self.bos is not None:
            ids.append(self.bos)
        opening = after is None or self.vocabulary.kinds[after] in MATCHED
        parts = self._special.split(data, parse=parse)
        for part, following in zip(parts, [*parts[1:], None], strict=False):
            if isinstance(part, int):
                ids.append(part)
                after, opening = part, True
                continue
            plain = part.lstrip() if after in self.takes_spaces else part
            plain = plain.rstrip() if following in self.takes_spaces_before else plain
            if plain:
                ids.extend(self._encode_plain(plain, opening=opening))
            after, opening = None, False
        if special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    @cached_property
    def _longest(self) -> int:
        """An upper bound of the bytes of a token: the longest spelling in the file."""
        return max(len(text.encode("utf-8", "surrogatepass")) for text in self.vocabulary.tokens)

    @property
    def _span(self) -> int:
        """Maximum characters of a token, each of which has at least one byte; 0 if it is not known."""
        return 0 if not self.keeps_text or self.takes_spaces or self.takes_spaces_before else max(4, self._longest)

    def fewest_tokens(self, *texts: str) -> int:
        """A lower bound of the tokens of texts, which is quick to compute; 0 if none is known."""
        return sum(len(text) // self._span for text in texts) if self._span else 0

    def cut(self, text: str, tokens: int, *, left: bool = False) -> str:
        """A part of a text that has its first `tokens` tokens, or with `left` its last; all if no bound is known."""
        most = tokens * self._span
        if not 0 < most < len(text):
            return text
        return text[-most:] if left else text[:most]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The exact bytes of one token; control tokens are empty unless `special`."""
        if not 0 <= token < self.vocab_size:
            raise BadInput(
                f"token id {token} is not in the vocabulary of {self.vocab_size} tokens (0 to {self.vocab_size - 1})"
            )
        kind = self.vocabulary.kinds[token]
        if kind in _HIDDEN and not special:
            return b""
        if kind in _HIDDEN or kind == Kind.USER_DEFINED:
            return self._special_text(token)
        return self._text_of(token)

    def decode_bytes(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes that `ids` decode to."""
        text = b"".join([self.piece(token, special=special) for token in ids])
        if self.strip_space:
            text = text.removeprefix(b" ")
        return clean_spaces(text) if self.clean_spaces else text

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text that `ids` decode to; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def stream(self, *, special: bool = False, continues: bool = False) -> "Detokenizer":
        """A decoder for ids that arrive one by one; `continues` keeps a leading space, as after a prompt."""
        return Detokenizer(
            lambda token: self.piece(token, special=special),
            strip_space=self.strip_space and not continues,
            clean=self.clean_spaces,
        )


def clean_spaces(text: bytes) -> bytes:
    """`text` without the spaces between words and detached punctuation or contractions."""
    for pattern, replacement in _CLEANUPS:
        text = pattern.sub(replacement, text)
    return text


def certain_bytes(text: bytes) -> int:
    """Number of leading bytes of `text` whose cleaned form does not depend on the text that follows."""
    end = len(text)
    if text.endswith((b"r", b"v")):
        end -= 1  # may become " 're" or " 've"
    run = len(text[:end].rstrip(b" '"))
    space = text.find(b" ", run, end)
    return len(text) if space < 0 else space


class Detokenizer:
    """Decodes ids one at a time. The results of `feed` and `flush` concatenate to the decoded whole."""

    def __init__(self, piece: Callable[[int], bytes], *, strip_space: bool, clean: bool) -> None:
        self._piece = piece
        self._strip_space = strip_space
        self._clean = clean
        self._held = b""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Returns the text that is certain after `token`. It may be empty, and never has a partial character."""
        text = self._piece(token)
        if self._strip_space and text:
            text = text.removeprefix(b" ")
            self._strip_space = False
        if self._clean:
            text = self._held + text
            cut = certain_bytes(text)
            self._held = text[cut:]
            text = clean_spaces(text[:cut])
        return self._utf8.decode(text)

    def flush(self) -> str:
        """Returns the rest, at the end of the text."""
        rest, self._held = clean_spaces(self._held), b""
        return self._utf8.decode(rest, final=True)
