"""UTF-8 as in llama.cpp: U+FFFD for each byte that does not start a character; surrogates and overlong forms pass."""

import re

_CHARACTER = re.compile(
    rb"[\x00-\x7f]+|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.", re.DOTALL
)
_LEAD_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}
SURROGATES = re.compile(r"([\ud800-\udfff]+)")


def is_utf8(data: bytes) -> bool:
    """True if `data` is valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def ends_inside_character(data: bytes) -> bool:
    """True if the last character lacks bytes."""
    for back, byte in enumerate(reversed(data[-4:]), 1):
        if byte & 0xC0 != 0x80:
            return back < (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0) + 1
    return False


def decode_leniently(data: bytes) -> str:
    """Decodes any bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(map(_decode_one, _CHARACTER.findall(data)))


def _decode_one(character: bytes) -> str:
    """Decodes a run of ASCII, one character of two to four bytes, or an invalid byte."""
    if character[0] < 0x80:
        return character.decode()
    if len(character) == 1:
        return "\ufffd"
    point = character[0] & _LEAD_BITS[len(character)]
    for byte in character[1:]:
        point = point << 6 | byte & 0x3F
    return chr(point) if point <= 0x10FFFF else "\ufffd"
