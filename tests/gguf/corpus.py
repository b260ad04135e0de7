"""Invalid files with one error each: a name, the file, and the words that its refusal must contain.

A row is bytes, or a function that creates files in a folder and returns the path to open. New rows are tested
automatically.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.gguf.writer import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    array_key,
    fifo,
    gguf,
    key,
    number,
    number_key,
    sparse,
    split,
    string,
    tensor,
    text_key,
    u32,
    u64,
)

GIGANTIC = (1 << 40, 1 << 63, (1 << 64) - 1)

KEYS = (
    text_key("general.architecture", "rwkv7"),
    number_key("rwkv7.block_count", U32, 2),
    number_key("flag", BOOL, True),
    array_key("tokens", STRING, [string("<s>"), string("naïve"), string("")]),
    array_key("scores", F32, [number(F32, x) for x in (0.5, -1.0, 3.25)]),
)
TENSORS = (
    tensor("norm.weight", [8], 0),  # 32 bytes of F32
    tensor("blk.0.key.weight", [32, 2], 32, kind=8),  # 68 bytes of Q8_0
    tensor("mix", [3, 1, 1], 128, kind=1),  # 6 bytes of F16
)
DATA = bytes(range(134))
GOOD = gguf(KEYS, TENSORS, DATA)


@dataclass(frozen=True)
class Bad:
    """A file that must be refused, and the words of the refusal."""

    name: str
    content: bytes | Callable[[Path], Path]
    says: str

    def put(self, folder: Path) -> Path:
        """Writes the file into a folder of its own and returns its path."""
        folder = folder / self.name.replace("/", " ")
        folder.mkdir()
        if not isinstance(self.content, bytes):
            return self.content(folder)
        path = folder / "model.gguf"
        path.write_bytes(self.content)
        return path


def with_key(row: bytes) -> bytes:
    return gguf([*KEYS, row], TENSORS, DATA)


def with_tensor(row: bytes, data: bytes = bytes(4096)) -> bytes:
    """Returns a file with one tensor, described by the row under test. It has enough data for any size in that row."""
    return gguf(KEYS, [row], data)


def foreign() -> Iterator[Bad]:
    """Returns files of other kinds."""
    yield Bad("empty", b"", "is empty")
    yield Bad("one byte", b"G", "found 'G'")
    yield Bad("zeros", bytes(1000), "not a GGUF model")
    yield Bad("text", b"Once upon a time\nthere was", "not a GGUF model")
    yield Bad("png", b"\x89PNG\r\n\x1a\n" + bytes(64), "found '\\x89PNG'")
    yield Bad("elf", b"\x7fELF\x02\x01\x01" + bytes(64), "found '\\x7fELF'")
    yield Bad("zip", b"PK\3\4" + bytes(64), "PyTorch checkpoint")
    yield Bad("gzip", b"\x1f\x8b\x08" + bytes(64), "not a GGUF model")
    yield Bad("safetensors", u64(64) + b'{"a":{"dtype":"F32"', "safetensors")
    yield Bad("web page", b"<!DOCTYPE html><html>404</html>", "web page")
    yield Bad("git lfs pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull")
    for magic in (b"lmgg", b"fmgg", b"tjgg"):
        yield Bad(f"old {magic[::-1].decode()}", magic + u32(1) + bytes(64), "before GGUF")
    yield Bad("magic reversed", gguf(KEYS, magic=b"FUGG"), "found 'FUGG'")
    yield Bad("magic in lower case", gguf(KEYS, magic=b"gguf"), "found 'gguf'")
    yield Bad("big endian", b"GGUF" + (3).to_bytes(4, "big") + bytes(64), "big-endian")
    for version in (0, 1, 4, 255, (1 << 32) - 1):
        yield Bad(f"version {version}", gguf(KEYS, TENSORS, DATA, version=version), "expected 2 or 3")


def truncations() -> Iterator[Bad]:
    """Returns files that end too early, one for each section."""
    head, table = len(gguf()), len(gguf(KEYS))
    says = "cut short or damaged"
    yield Bad("ends after the magic", GOOD[:4], says)
    yield Bad("ends inside the version", GOOD[:6], says)
    yield Bad("ends after the version", GOOD[:8], says)
    yield Bad("ends inside the tensor count", GOOD[:12], says)
    yield Bad("ends inside the metadata count", GOOD[:20], says)
    yield Bad("ends after the counts", GOOD[:head], says)
    one = gguf(KEYS[:1])
    yield Bad("ends inside a key", one[: head + 8 + 10], "10 in the 10 bytes left")
    yield Bad("ends inside a value type", one[: head + 8 + 20 + 2], "the type of metadata key 'general.architecture'")
    yield Bad("ends inside a value", one[: head + 8 + 20 + 4 + 8 + 2], "2 in the 2 bytes left")
    yield Bad("ends inside a number", gguf([number_key("k", U64, 1)])[:-3], "5 of its 8 bytes")
    yield Bad("ends inside an array of strings", gguf([KEYS[3]])[:-9], "string 1 of metadata key 'tokens'")
    yield Bad("ends inside an array of numbers", GOOD[: table - 2], says)
    yield Bad("ends before the tensor table", GOOD[:table], says)
    yield Bad("ends inside a tensor name", GOOD[: table + 12], says)
    yield Bad("ends inside a tensor's dimensions", GOOD[: GOOD.index(b"norm.weight") + 11 + 4 + 4], says)
    yield Bad("ends inside the last row of the table", GOOD[: len(gguf(KEYS, TENSORS)) // 32 * 32 - 32], says)
    yield Bad("ends with the tensor table", gguf(KEYS, TENSORS), "'norm.weight'")
    yield Bad("ends inside the first tensor", gguf(KEYS, TENSORS, DATA[:31]), "31 of its 32 bytes")
    yield Bad("ends in the padding of a tensor", gguf(KEYS, TENSORS, DATA[:101]), "'mix'")
    yield Bad("lacks its last byte", GOOD[:-1], "5 of its 6 bytes")
    yield Bad("goes on too long", GOOD + bytes(33), "33 more bytes")


def counts() -> Iterator[Bad]:
    """Returns files with lengths and counts that are larger than the data."""
    for n in GIGANTIC:
        yield Bad(f"{n} keys", gguf(KEYS, TENSORS, DATA, n_keys=n), "the metadata count at byte 16")
        yield Bad(f"{n} tensors", gguf(KEYS, TENSORS, DATA, n_tensors=n), "the tensor count at byte 8")
        yield Bad(f"a key of {n} bytes", with_key(string("k", n) + u32(U8) + b"1"), "the length of metadata key 6")
        yield Bad(
            f"a string of {n} bytes", with_key(key("k", STRING, string("x", n))), "the length of metadata key 'k'"
        )
        yield Bad(f"{n} numbers", with_key(array_key("k", U8, [b"1"], n)), "the element count of metadata key 'k'")
        yield Bad(f"{n} doubles", with_key(array_key("k", 12, [bytes(8)], n)), "the element count of metadata key 'k'")
        yield Bad(f"{n} strings", with_key(array_key("k", STRING, [string("x")], n)), "the element count of")
        yield Bad(
            f"an element of {n} bytes", with_key(array_key("k", STRING, [string("x", n)])), "string 0 of metadata"
        )
        yield Bad(
            f"a tensor name of {n} bytes", with_tensor(string("t", n) + u32(1) + u64(1) + u32(0) + u64(0)), "name"
        )
    yield Bad("one key too many", gguf(KEYS, TENSORS, DATA, n_keys=len(KEYS) + 1), "the name of tensor 1 of 3")
    yield Bad("one key too few", gguf(KEYS, TENSORS, DATA, n_keys=len(KEYS) - 1), "tensor 'scores'")
    yield Bad("one tensor too many", gguf(KEYS, TENSORS, DATA, n_tensors=len(TENSORS) + 1), "tensor 4 of 4")
    yield Bad("one tensor too few", gguf(KEYS, TENSORS, DATA, n_tensors=len(TENSORS) - 1), "66 more bytes")
    yield Bad(
        "an array one element too long", gguf([array_key("k", U64, [bytes(8)], 2)]), "at most 1 in the 8 bytes left"
    )


def giants() -> Iterator[Bad]:
    """Returns files of 1 TiB without content: their size allows any claim. Windows would write the zeros."""
    if os.name == "nt":
        return
    yield Bad("goes on for ever", partial(sparse, GOOD), "more bytes")
    yield Bad("65537 keys of 1 TiB", partial(sparse, gguf(n_keys=65537)), "found 65537, expected at most 65536")
    yield Bad("65537 tensors of 1 TiB", partial(sparse, gguf(n_tensors=65537)), "found 65537, expected at most 65536")
    for n in (1 << 28, *GIGANTIC):
        yield Bad(f"{n} keys of 1 TiB", partial(sparse, gguf(n_keys=n)), "up to 64 MiB")
        yield Bad(f"{n} numbers of 1 TiB", partial(sparse, gguf([array_key("k", U8, [], n)])), "up to 64 MiB")
        yield Bad(f"{n} strings of 1 TiB", partial(sparse, gguf([array_key("k", STRING, [], n)])), "up to 64 MiB")


def keys() -> Iterator[Bad]:
    """Returns files with malformed metadata."""
    yield Bad("an empty key", with_key(text_key("", "x")), "1 to 65535 bytes")
    yield Bad("a key of 65536 bytes", with_key(text_key("k" * 65536, "x")), "1 to 65535 bytes")
    yield Bad("a key with a newline", with_key(text_key("a\nb", "x")), "'a\\nb'")
    yield Bad("a key with an escape sequence", with_key(text_key("\x1b[31mred", "x")), "'\\x1b[31mred'")
    yield Bad("a key with a zero byte", with_key(text_key("a\0", "x")), "'a\\x00'")
    yield Bad("a key that turns the writing round", with_key(text_key("a\u202eb", "x")), "'a\\u202eb'")
    yield Bad("a key that is not UTF-8", with_key(text_key(b"a\xff", "x")), "UTF-8")
    yield Bad("a key twice", with_key(text_key("flag", "x")), "a second one")
    yield Bad("a string that is not UTF-8", with_key(text_key("k", b"ab\xc3(")), "UTF-8")
    yield Bad("a string with a surrogate", with_key(text_key("k", b"\xed\xa0\x80")), "UTF-8")
    yield Bad("a string with an overlong form", with_key(text_key("k", b"\xc0\x80")), "UTF-8")
    yield Bad("a string cut within a letter", with_key(text_key("k", b"\xe2\x82")), "UTF-8")
    yield Bad(
        "a token that is not UTF-8", with_key(array_key("k", STRING, [string("a"), string(b"\x80")])), "string 1 of"
    )
    for kind in (13, 255, (1 << 32) - 1):
        yield Bad(f"value type {kind}", with_key(key("k", kind, bytes(8))), "value types 0 to 12")
        yield Bad(f"element type {kind}", with_key(array_key("k", kind, [bytes(8)])), "value types 0 to 12")
    for value in (2, 255):
        yield Bad(f"a bool of {value}", with_key(key("k", BOOL, bytes([value]))), f"a bool of {value}")
    yield Bad("a bool of 2 in an array", with_key(array_key("k", BOOL, [b"\1", b"\2"])), "a bool of 2")
    inner = u32(U8) + u64(1) + b"1"
    yield Bad("an array of arrays", with_key(array_key("k", ARRAY, [inner])), "array of arrays")
    yield Bad("arrays a million deep", with_key(key("k", ARRAY, (u32(ARRAY) + u64(1)) * 1_000_000)), "array of arrays")
    for value in (0, 1, 3, 4, 33, 48, 1 << 17, 1 << 31):
        row = number_key("general.alignment", U32, value)
        yield Bad(f"alignment {value}", gguf([row], TENSORS, DATA), "a power of two from 8 to 65536")
    yield Bad("alignment -32", gguf([number_key("general.alignment", I32, -32)]), "a power of two")
    yield Bad("alignment in words", gguf([text_key("general.alignment", "32")]), "found '32', expected a power of two")
    yield Bad("alignment 32.0", gguf([number_key("general.alignment", F32, 32.0)]), "a power of two")
    yield Bad("alignment in an array", gguf([array_key("general.alignment", U32, [u32(32)])]), "an array of 1 uint32")


def tensors() -> Iterator[Bad]:
    """Returns files with impossible rows in the tensor table."""
    yield Bad("a tensor without a name", with_tensor(tensor("", [8])), "1 to 63 bytes")
    yield Bad("a tensor name of 64 bytes", with_tensor(tensor("t" * 64, [8])), "1 to 63 bytes")
    yield Bad("a tensor name of 32 letters of two bytes", with_tensor(tensor("é" * 32, [8])), "64 bytes")
    yield Bad("a tensor name with a newline", with_tensor(tensor("a\nb", [8])), "'a\\nb'")
    yield Bad("a tensor name with a zero byte", with_tensor(tensor("a\0b", [8])), "'a\\x00b'")
    yield Bad("a tensor name that is not UTF-8", with_tensor(tensor(b"\xff", [8])), "UTF-8")
    yield Bad("a tensor twice", gguf(KEYS, [tensor("t", [8]), tensor("t", [8], 32)], bytes(64)), "a second one")
    yield Bad("no dimensions", with_tensor(tensor("t", [])), "1 to 4")
    for n in (5, 255, (1 << 32) - 1):
        yield Bad(f"{n} dimensions", with_tensor(tensor("t", [1] * 5, n_dims=n)), "1 to 4")
    yield Bad("a dimension of 0", with_tensor(tensor("t", [8, 0])), "at least 1")
    yield Bad("a first dimension of 0", with_tensor(tensor("t", [0, 8])), "at least 1")
    for kind, dim in ((8, 33), (12, 128), (2, 16), (14, 255), (39, 1)):
        yield Bad(
            f"a row of {dim} of type {kind}", with_tensor(tensor("t", [dim, 256], kind=kind)), "rows of a multiple of"
        )
    for kind in (4, 5, 31, 36, 43, 1 << 16, (1 << 32) - 1):
        yield Bad(f"tensor type {kind}", with_tensor(tensor("t", [256], kind=kind)), "llama-quantize")
    for dims in ([1 << 62], [1 << 63, 2], [1 << 32, 1 << 32], [1 << 62] * 4, [(1 << 64) - 1], [1 << 31, 1 << 31, 4]):
        yield Bad(f"a shape of {dims}", with_tensor(tensor("t", dims)), "of its")
    yield Bad("a tensor one row too large", with_tensor(tensor("t", [1024, 2])), "4096 of its 8192 bytes")


def offsets() -> Iterator[Bad]:
    """Returns files with tensors at wrong offsets."""

    def two(offset: int, data: int = 4096) -> bytes:
        return gguf(KEYS, [tensor("a", [8]), tensor("b", [8], offset)], bytes(data))

    yield Bad("a first tensor that leaves a gap", with_tensor(tensor("t", [8], 32)), "a gap")
    yield Bad("a gap between tensors", two(64), "a gap")
    yield Bad("one tensor over the other", two(0), "over the tensor before it")
    yield Bad("an offset past the end", two(1 << 20), "a gap")
    for offset in (1, 31, 33, (1 << 64) - 1):
        yield Bad(f"offset {offset}", two(offset), "not a multiple of 32")
    for offset in (1 << 40, 1 << 63, (1 << 64) - 32):
        yield Bad(f"offset {offset}", two(offset), "a gap")
    swapped = gguf(KEYS, [tensor("a", [8], 32), tensor("b", [8], 0)], bytes(64))
    yield Bad("tensors in another order than their data", swapped, "a gap")
    wide = gguf([number_key("general.alignment", U32, 64)], [tensor("a", [8]), tensor("b", [8], 32)], bytes(128))
    yield Bad("an offset that ignores the alignment", wide, "not a multiple of 64")
    yield Bad("a second tensor without data", two(32, data=32), "'b'")


def special() -> Iterator[Bad]:
    """Returns paths that are not regular files."""
    yield Bad("a missing file", lambda folder: folder / "none.gguf", "No such file")
    yield Bad("a directory", lambda folder: folder, "is a directory")
    yield Bad("a zero byte in the path", lambda folder: folder / "a\0b", "a\\x00b: cannot be opened")
    yield Bad("a newline in the path", lambda folder: folder / "a\nb", "a\\nb: cannot be opened")
    if hasattr(os, "mkfifo"):
        yield Bad("a pipe", fifo, "is a pipe")
        yield Bad("/dev/zero", lambda _: Path("/dev/zero"), "is a device")
        yield Bad("/dev/null", lambda _: Path("/dev/null"), "is a device")


def splits() -> Iterator[Bad]:
    """Returns parts of a split model that do not form one."""
    yield Bad("a part is missing", partial(split, without=2), "model-00002-of-00003.gguf: part 2 of 3 is missing")
    yield Bad("a part without a part's name", partial(split, stem="part"), "its name does not end like")
    yield Bad("a part of another count", partial(split, counts=(3, 3, 2)), "is part 3 of 2 with")
    yield Bad(
        "parts in the wrong order",
        partial(split, numbers=(0, 2, 1)),
        "expected part 2 of 3 with",
    )
    yield Bad(
        "fewer tensors than announced",
        partial(split, total=4),
        "with 4 tensors, expected",
    )
    yield Bad("a tensor in two parts", partial(split, names="aab"), "in an earlier part already")
    yield Bad("more parts than the name says", partial(split, counts=(4, 4, 4)), "one of 4 parts")
    yield Bad("a part that is not GGUF", partial(split, spoilt=1), "not a GGUF model")
    words = gguf([text_key("split.count", "three")])
    yield Bad("a part count in words", words, "'split.count': found 'three', expected an integer")
    yield Bad("65536 parts", gguf([number_key("split.count", U32, 65536)]), "found 65536")
    yield Bad("-1 parts", gguf([number_key("split.count", I32, -1)]), "found -1")


GROUPS = (foreign, truncations, counts, giants, keys, tensors, offsets, special, splits)
BAD = tuple(row for group in GROUPS for row in group())
