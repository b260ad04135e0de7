"""UTF-8 as llama.cpp reads it: U+FFFD for each byte that starts no character; surrogates and overlong forms pass."""

import re

_CHARACTER = re.compile(
    rb"[\x00-\x7f]+|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.", re.DOTALL
)
_LEAD_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}
SURROGATES = re.compile(r"([\ud800-\udfff]+)")


def is_utf8(data: bytes) -> bool:
    """Whether `data` is UTF-8 without a fault."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def decode_leniently(data: bytes) -> str:
    """`data` as text, whatever bytes it holds."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(map(_decode_one, _CHARACTER.findall(data)))


def _decode_one(character: bytes) -> str:
    """A run of ASCII, one character of two to four bytes, or a byte that is none."""
    if character[0] < 0x80:
        return character.decode()
    if len(character) == 1:
        return "\ufffd"
    point = character[0] & _LEAD_BITS[len(character)]
    for byte in character[1:]:
        point = point << 6 | byte & 0x3F
    return chr(point) if point <= 0x10FFFF else "\ufffd"
