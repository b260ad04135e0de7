"""JSON schemas whose objects have no other keys than their properties, unless a schema says otherwise.

JSON Schema allows any further key where `properties` are given. A model would then invent some, so such objects are
closed, as in llama.cpp.
"""

from collections.abc import Mapping
from typing import Any

NAMED = ("properties", "$defs", "definitions", "patternProperties")  # keywords with schemas by name
LISTS = ("anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
# Keywords that say something about further keys themselves, or combine the keys of several schemas
OPEN = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties", "allOf",
     "anyOf", "oneOf", "$ref", "if", "not"}
)  # fmt: skip


def closed(schema: Any) -> Any:
    """A copy of the schema whose objects with properties allow no other keys.

    The parts of `allOf` stay open, as they share one object; so do definitions that such parts may refer to.
    """
    return _closed(schema, definitions=not _has_all_of(schema))


def _closed(schema: Any, *, definitions: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = {**schema}
    for name in NAMED:
        if isinstance(found.get(name), Mapping) and (definitions or name not in ("$defs", "definitions")):
            found[name] = {key: _closed(part, definitions=definitions) for key, part in found[name].items()}
    for name in LISTS:
        if isinstance(found.get(name), list):
            found[name] = [_closed(part, definitions=definitions) for part in found[name]]
    for name in SINGLE:
        if name in found:
            found[name] = _closed(found[name], definitions=definitions)
    if found.get("properties") and not OPEN & found.keys():
        found["additionalProperties"] = False
    return found


def _has_all_of(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return "allOf" in schema or any(map(_has_all_of, schema.values()))
    return isinstance(schema, list) and any(map(_has_all_of, schema))
