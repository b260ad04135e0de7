"""Converts the result of a tool call to bounded text for the model."""

import json
from dataclasses import dataclass
from typing import Any

MAX_RESULT = 32_000  # characters of a result that the model reads


@dataclass(frozen=True)
class Result:
    """The result of a tool call. `failed` is set if the text describes a failure."""

    text: str
    failed: bool = False


def result_of(found: Any) -> Result:
    """The texts in a server's result. For other content, only its kind is given."""
    parts = []
    for block in found.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource" and getattr(block.resource, "text", None) is not None:
            parts.append(block.resource.text)
        else:
            parts.append(f"[{block.type} {getattr(block, 'mime_type', None) or ''}]".replace(" ]", "]"))
    if not parts and found.structured_content is not None:
        parts.append(json.dumps(found.structured_content, ensure_ascii=False))
    return Result(cut("\n".join(parts)), bool(found.is_error))


def failed(text: str) -> Result:
    """The result of a call that could not be made."""
    return Result(f"error: {cut(text)}", failed=True)


def cut(text: str, most: int = MAX_RESULT) -> str:
    """The beginning of a text that is too long, with the number of characters that are left out."""
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most:,} more characters were left out]"
