"""Looks up names of C types directly. cffi itself would parse all names of the header again for each new type.

A parse takes 26 ms, and opening a GPU needs some forty types. That was half of the CPU time of loading a small model.
"""

import re
from typing import Any

NAMED = re.compile(r"(?P<name>\w+) *(?P<suffix>\*|\[\])? *")


def look_up_names(ffi: Any) -> None:
    """Lets this cffi interface find `NAME`, `NAME *` and `NAME[]` in its table of typedefs; it still parses the rest.

    Changes nothing if this version of cffi keeps its table elsewhere.
    """
    parser: Any = getattr(ffi, "_parser", None)
    table, parse = getattr(parser, "_declarations", None), getattr(parser, "parse_type", None)
    pointer_to, array_of = _makers(parser)
    if table is None or parse is None or pointer_to is None:
        return

    def parse_type(text: str) -> Any:
        found = NAMED.fullmatch(text)
        known = found and table.get(f"typedef {found['name']}")
        if not found or not known:
            return parse(text)
        itself, qualifiers = known
        match found["suffix"]:
            case "*":
                return pointer_to(itself, qualifiers)
            case "[]":
                return array_of(itself, None)
            case _:
                return itself

    parser.parse_type = parse_type


def _makers(parser: Any) -> tuple[Any, Any]:
    """cffi's functions that make pointer types and array types; None if it has none with these names."""
    try:
        from cffi.model import ArrayType
    except ImportError:
        return None, None
    return getattr(parser, "_get_type_pointer", None), ArrayType
