"""How hard a model is to think, by the words of OpenAI and Ollama, as settings of a chat template."""

from collections.abc import Mapping
from typing import Any

from .call import Json
from .errors import ApiError

# What templates that know degrees of reasoning call them; others switch it on or off.
EFFORTS = {"none": None, "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}


def with_effort(asked: Json, effort: Any, field: str) -> None:
    """Adds an effort to a request for a chat completion. What the request says of its template itself counts more."""
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise ApiError(400, f"{field} is {effort!r}; it must be one of {', '.join(EFFORTS)}", param=field)
    asked.setdefault("think", effort != "none")
    variables = asked.get("chat_template_kwargs", {})
    if effort != "none" and isinstance(variables, Mapping):  # else the library refuses them
        asked["chat_template_kwargs"] = {"reasoning_effort": EFFORTS[effort], **variables}
