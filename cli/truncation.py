"""What to say of an answer that was cut off: no answer is truncated silently."""

from collections.abc import Mapping
from typing import Any

from rwkv_gpu import Completion
from rwkv_gpu.llm.completion import FORMS


def truncation(done: Completion, max_tokens: int, settings: Mapping[str, Any]) -> str | None:
    """Why an answer ended too early, and the remedy; None where it came to its own end."""
    if done.finish_reason != "length":
        return None
    if done.stats.new_tokens >= max_tokens:
        text = f"the answer was cut off at {max_tokens:,} tokens; --max-tokens allows more, -1 any number"
    else:
        text = f"the answer was cut off after {done.stats.new_tokens:,} tokens: the context is full; see --context"
    return text + ("; what there is may not match its format" if any(settings.get(name) for name in FORMS) else "")
