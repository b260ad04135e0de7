"""The vocabulary of a GGUF file: tokens, their kinds, and ids with a role. Read and checked once.

It reads the metadata; splitting text into tokens is done elsewhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.cursor import shown

PREFIX = "tokenizer.ggml."
SPACE = "▁"  # represents a space in the tokens of most kinds
IMAGE = {"chameleon": "IMGIMG"}  # prefix of the tokens of images, by pre-tokenizer; never sampled, as answers are texts
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Kind(IntEnum):
    """The kind of a token, numbered as in `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # matched and shown on request only
    USER_DEFINED = 4  # always matched and shown
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Role:
    """A token with a role: given by `tokenizer.ggml.<key>_token_id`, else found by the first of these texts."""

    key: str
    texts: tuple[str, ...]
    stops: bool = False


EOT = Role("eot", (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
), stops=True)  # fmt: skip
ROLES = (
    EOT,
    Role("eom", ("<|eom_id|>",), stops=True),
    Role("fim_pre", (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
    )),
    Role("fim_suf", (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
    )),
    Role("fim_mid", (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
    )),
    Role("fim_pad", ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"), stops=True),
    Role("fim_rep", ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), stops=True),
    Role("fim_sep", ("<|file_sep|>",), stops=True),
)  # fmt: skip
INFILL = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}  # roles, with names in older files
# A token with such a name ends an answer, even if its kind in the file is another.
STOP_TEXTS = frozenset(EOT.texts) | {
    "<|eom_id|>", "</s>", "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "<|return|>", "<|call|>", "<|calls|>",
    "<|flush|>", "[e~[", "<|observation|>",
}  # fmt: skip
# Except these, if a vocabulary has all of the others: then these occur inside answers.
INSIDE = (
    *(
        ("<|end|>", {call, end}, Kind.USER_DEFINED)
        for call in ("<|call|>", "<|calls|>")
        for end in ("<|return|>", "<|flush|>")
    ),
    ("</s>", {"<|tool_response>"}, Kind.NORMAL),
)
# Harmony's channel marks, which are always matched and shown.
SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class Defaults:
    """The defaults of a kind of tokenizer, for values missing in the file."""

    bos: int | None = None
    eos: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    named_stops: bool = True  # whether tokens with a role are also found by their text


@dataclass(frozen=True)
class Vocabulary:
    """Text and kind of every token, and the ids that begin and end a text."""

    tokens: Sequence[str]
    kinds: bytes  # one Kind per token
    ids: Mapping[str, int]
    bos: int | None
    eos: int | None
    eot: int | None
    add_bos: bool
    add_eos: bool
    stop_ids: frozenset[int]
    suppressed: frozenset[int]  # must not be generated
    infill: tuple[int, ...] | None = None  # tokens before a prefix, a suffix and the text between them
    of_project: int | None = None  # token before the name of a project, in an infilling prompt with files
    of_file: int | None = None  # token before the name of a file there

    def __len__(self) -> int:
        return len(self.tokens)


def read_vocabulary(metadata: Mapping[str, Any], defaults: Defaults) -> Vocabulary:
    """Reads the vocabulary. Raises BadFile that names a wrong key."""
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(read_strings(metadata, "tokens"))]
    if not tokens:
        raise BadFile(f"{PREFIX}tokens is empty")
    ids = {text: i for i, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(text for i, text in enumerate(tokens) if ids[text] != i)
        raise BadFile(f"{PREFIX}tokens: the token {shown(twice)} is there twice")
    kinds = read_kinds(metadata, len(tokens))
    bos = read_id(metadata, "bos", len(tokens), defaults.bos)
    eos = read_id(metadata, "eos", len(tokens), defaults.eos)
    eot, stops = _read_stops(metadata, ids, kinds, defaults.named_stops)
    return Vocabulary(
        tokens=tokens,
        kinds=bytes(kinds),
        ids=ids,
        bos=bos,
        eos=eos,
        eot=eot,
        add_bos=_read_adds(metadata, "bos", bos, defaults.add_bos),
        add_eos=_read_adds(metadata, "eos", eos, defaults.add_eos),
        stop_ids=frozenset(stops if eos is None else stops | {eos}),
        suppressed=_read_suppressed(metadata, tokens),
        infill=_read_infill(metadata, ids),
        of_project=_read_role(metadata, ids, "fim_rep"),
        of_file=_read_role(metadata, ids, "fim_sep"),
    )


def read_strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    """The list of strings at `tokenizer.ggml.<name>`."""
    value = metadata.get(PREFIX + name)
    if value is None:
        raise BadFile(f"{PREFIX}{name} is missing: the file has no usable tokenizer")
    if not isinstance(value, list) or not {type(text) for text in value} <= {str}:
        raise BadFile(f"{PREFIX}{name} must be an array of strings")
    return value


def read_merges(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Two tokens per line, separated by a space. The first may be, or begin with, a space or a line end."""
    merges: list[tuple[str, str]] = []
    for line in read_strings(metadata, "merges"):
        at = line.find(" ", 1)
        left, right = line[:at], line[at + 1 :]
        if at < 0 or left not in ids or right not in ids or left + right not in ids:
            raise BadFile(f"{PREFIX}merges: {shown(line)} names a token that {PREFIX}tokens does not have")
        merges.append((left, right))
    return merges


def read_numbers(metadata: Mapping[str, Any], name: str, count: int) -> NDArray[Any]:
    """The array at `tokenizer.ggml.<name>`, one number for each of `count` tokens."""
    value = metadata.get(PREFIX + name)
    if value is None:
        raise BadFile(f"{PREFIX}{name} is missing: the file has no usable tokenizer")
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise BadFile(f"{PREFIX}{name} must be an array of numbers")
    if len(array) != count:
        raise BadFile(f"{PREFIX}{name} has {len(array)} entries for {count} tokens")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadFile(f"{PREFIX}{name} holds numbers that are not finite")
    return array


def read_scores(metadata: Mapping[str, Any], count: int) -> NDArray[Any]:
    """The score of each token, 0 in files without scores (XVERSE)."""
    return read_numbers(metadata, "scores", count) if PREFIX + "scores" in metadata else np.zeros(count, np.float32)


def read_id(metadata: Mapping[str, Any], role: str, count: int, default: int | None = None) -> int | None:
    """The id at `tokenizer.ggml.<role>_token_id`, or `default` if the vocabulary is large enough."""
    key = f"{PREFIX}{role}_token_id"
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < count else None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadFile(f"{key} must be a token id, not {shown(value)}")
    if not 0 <= value < count:
        raise BadFile(f"{key} is {value}, but the vocabulary has {count} tokens (0 to {count - 1})")
    return int(value)


def byte_of(text: str) -> bytes:
    """The byte of a token such as <0x41>; empty for other texts."""
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else b""


def _read_infill(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[int, ...] | None:
    """The tokens around the parts of an infilling prompt. None without any."""
    found = [_read_role(metadata, ids, key, read_id(metadata, older, len(ids))) for key, older in INFILL.items()]
    known = [token for token in found if token is not None]
    return tuple(known) if len(known) == len(found) else None


def _read_role(metadata: Mapping[str, Any], ids: Mapping[str, int], key: str, older: int | None = None) -> int | None:
    """The token of a role: by its key, an older key, or one of its texts."""
    token = read_id(metadata, key, len(ids), older)
    texts = next(role.texts for role in ROLES if role.key == key)
    return next((ids[text] for text in texts if text in ids), None) if token is None else token


def _read_suppressed(metadata: Mapping[str, Any], tokens: Sequence[str]) -> frozenset[int]:
    """Unused tokens, such as those with zero embeddings, and those of images; ids beyond the vocabulary are ignored."""
    key = PREFIX + "suppress_tokens"
    ids = np.asarray(metadata.get(key, np.zeros(0, np.int32)))
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadFile(f"{key} must be an array of token ids")
    image = IMAGE.get(str(metadata.get(PREFIX + "pre")))
    images = [i for i, token in enumerate(tokens) if token.startswith(image)] if image else []
    return frozenset(ids[(ids >= 0) & (ids < len(tokens))].tolist()).union(images)


def read_kinds(metadata: Mapping[str, Any], count: int) -> bytearray:
    """The kind of each token, as specified in the file."""
    if PREFIX + "token_type" not in metadata:
        return bytearray([Kind.NORMAL]) * count
    kinds = read_numbers(metadata, "token_type", count)
    return bytearray(np.where(np.isin(kinds, list(Kind)), kinds, Kind.UNDEFINED).astype(np.uint8).tobytes())


def read_flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """The boolean at `tokenizer.ggml.<name>`, or `default`."""
    value = metadata.get(PREFIX + name, default)
    if not isinstance(value, bool | np.bool_):
        raise BadFile(f"{PREFIX}{name} must be true or false, not {shown(value)}")
    return bool(value)


def read_name(metadata: Mapping[str, Any], name: str) -> str | None:
    """The string at `tokenizer.ggml.<name>`, if any."""
    value = metadata.get(PREFIX + name)
    if value is not None and not isinstance(value, str):
        raise BadFile(f"{PREFIX}{name} must be a string, not {shown(value)}")
    return value


def _read_adds(metadata: Mapping[str, Any], role: str, token: int | None, default: bool) -> bool:
    """True if `encode` adds the token of this role. The token must exist only if the file itself requests that."""
    adds = read_flag(metadata, f"add_{role}_token", default and token is not None)
    if adds and token is None:
        raise BadFile(f"{PREFIX}add_{role}_token is true, but {PREFIX}{role}_token_id is missing")
    return adds


def _read_stops(
    metadata: Mapping[str, Any], ids: Mapping[str, int], kinds: bytearray, named: bool
) -> tuple[int | None, set[int]]:
    """The end of turn, and every token that ends generation. Tokens found by text become control tokens."""
    stops: set[int] = set()
    if not named:
        return read_id(metadata, EOT.key, len(ids)), stops
    holders: dict[str, int | None] = {}
    for role in ROLES:
        token = read_id(metadata, role.key, len(ids))
        if token is None:
            token = next((ids[text] for text in role.texts if text in ids), None)
            if token is not None:
                kinds[token] = Kind.CONTROL
        if token is not None and role.stops:
            stops.add(token)
        holders[role.key] = token
    for text in STOP_TEXTS & ids.keys():
        kinds[ids[text]] = Kind.CONTROL
        stops.add(ids[text])
    for text, others, kind in INSIDE:
        if text in ids and others <= ids.keys():
            kinds[ids[text]] = kind
            stops.discard(ids[text])
    for text in set(SHOWN) & ids.keys():
        kinds[ids[text]] = Kind.USER_DEFINED
    return holders[EOT.key], stops
