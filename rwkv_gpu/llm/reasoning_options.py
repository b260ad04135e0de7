"""Reasoning in a chat: whether the model reasons, for how many tokens, and the text that ends its reasoning there."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadInput

LIMITS = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")  # in llama-server, vLLM
MOST = 1 << 31  # tokens
LONGEST = 4096  # characters of a message


@dataclass(frozen=True)
class ReasoningOptions:
    """The settings of reasoning in a chat, for requests that do not set them."""

    think: bool | None = None  # None leaves the choice to the template
    limit: int | None = None  # maximum tokens of reasoning; None is no limit
    message: str | None = None  # text that the model writes if its reasoning reaches the limit
    variables: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template

    def __post_init__(self) -> None:
        whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        if self.limit is not None and not (whole and 0 <= self.limit < MOST):
            raise BadInput(f"the limit of reasoning is {self.limit!r}; it must be a number of tokens, or -1 for none")
        if self.message is not None and not (isinstance(self.message, str) and len(self.message) <= LONGEST):
            raise BadInput(f"reasoning_budget_message must be a string of at most {LONGEST:,} characters")

    def over(self, other: "ReasoningOptions") -> "ReasoningOptions":
        """These settings; those that are not set are taken from `other`."""
        return ReasoningOptions(
            other.think if self.think is None else self.think,
            other.limit if self.limit is None else self.limit,
            other.message if self.message is None else self.message,
            {**other.variables, **self.variables},
        )

    def read(self, rest: dict[str, Any]) -> "ReasoningOptions":
        """Takes the reasoning limit and its message out of the fields of a request.

        For -1 and None, these settings apply.
        """
        given = {name: rest.pop(name) for name in LIMITS if name in rest}
        limits = [limit for limit in given.values() if limit is not None and limit != -1]
        message = rest.pop("reasoning_budget_message", None)
        return replace(
            self,
            limit=limits[0] if limits else self.limit,
            message=self.message if message is None else message,
        )
