"""Contexts and speeds as text."""


def context_text(context: int | None, trained: int | None = None) -> str:
    """40,960 tokens; or: no limit (trained on 1,024)"""
    text = "no limit" if context is None else f"{context:,} tokens"
    return text + (f" (trained on {trained:,})" if trained is not None and trained != context else "")


def at_rate(tokens_per_second: float, digits: int = 1) -> str:
    """The end of a phrase: at 52.3 tok/s; empty if the speed is unknown, as that of a single token."""
    return f" at {tokens_per_second:,.{digits}f} tok/s" if tokens_per_second else ""
