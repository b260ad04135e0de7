"""Narrows JSON schemas as llama.cpp does. Otherwise, a model would add whatever JSON Schema allows by default.

Objects with properties have no other keys. Integers have 64 bits, so that they have a limited number of digits. A
schema with properties is an object, and one with items an array. `oneOf` is treated as `anyOf`. A format that the
grammar does not know (`password`, `path`) is a note to readers, as JSON Schema defines it.
"""

from collections.abc import Mapping
from typing import Any

NAMED = ("properties", "$defs", "definitions", "patternProperties")  # keywords with schemas by name
LISTS = ("anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
# Keywords that restrict further keys themselves, or combine the keys of several schemas
OPEN = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties", "allOf",
     "anyOf", "oneOf", "$ref", "if", "not"}
)  # fmt: skip
VALUES = frozenset({"enum", "const"})
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # of strings that follow them
LIMIT = (1 << 63) - 1024  # the largest 64-bit integer that is also a float, as llguidance stores floats


def closed(schema: Any) -> Any:
    """A copy of the schema whose objects with properties allow no other keys, and whose integers are bounded.

    The parts of `allOf` stay open, as they share one object; so do definitions that such parts may refer to.
    """
    return _closed(schema, definitions=not _has_all_of(schema))


def _closed(schema: Any, *, definitions: bool, narrow: bool = True) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = {**schema}
    if isinstance(form := found.get("format"), str) and form not in FORMATS:
        del found["format"]
    for name in NAMED:
        if isinstance(found.get(name), Mapping):
            within = narrow and (definitions or name not in ("$defs", "definitions"))
            found[name] = {k: _closed(part, definitions=definitions, narrow=within) for k, part in found[name].items()}
    for name in (*LISTS, "allOf"):
        if isinstance(found.get(name), list):
            within = narrow and name != "allOf"
            found[name] = [_closed(part, definitions=definitions, narrow=within) for part in found[name]]
    for name in SINGLE:
        if name in found:
            found[name] = _closed(found[name], definitions=definitions, narrow=narrow)
    if not narrow:
        return found
    if "anyOf" not in found and "oneOf" in found:
        found["anyOf"] = found.pop("oneOf")
    if found.get("properties") and not OPEN & found.keys():
        found["additionalProperties"] = False
        found.setdefault("type", "object")
    elif {"items", "prefixItems"} & found.keys() and not {*OPEN, *VALUES} & found.keys():
        found.setdefault("type", "array")
    if found.get("type") == "integer" and not VALUES & found.keys():
        found |= {} if "exclusiveMinimum" in found else {"minimum": found.get("minimum", -LIMIT)}
        found |= {} if "exclusiveMaximum" in found else {"maximum": found.get("maximum", LIMIT)}
    return found


def _has_all_of(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return "allOf" in schema or any(map(_has_all_of, schema.values()))
    return isinstance(schema, list) and any(map(_has_all_of, schema))
