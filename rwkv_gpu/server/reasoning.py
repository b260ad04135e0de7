"""Translates the reasoning effort of OpenAI and Ollama to settings of a chat template."""

from collections.abc import Mapping
from typing import Any

from .call import Json
from .errors import ApiError

# The values of templates that have levels of reasoning. Other templates only switch it on or off.
EFFORTS = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def with_effort(asked: Json, effort: Any, field: str) -> None:
    """Adds a reasoning effort to a chat completion request. Template settings in the request take precedence."""
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise ApiError(400, f"{field} is {effort!r}; it must be one of {', '.join(EFFORTS)}", param=field)
    asked.setdefault("think", effort != "none")
    variables = asked.get("chat_template_kwargs", {})
    if effort != "none" and isinstance(variables, Mapping):  # other values are refused by the library
        asked["chat_template_kwargs"] = {"reasoning_effort": EFFORTS[effort], **variables}
