"""Tokens and speeds of the answers in a chat, as lines to show."""

from dataclasses import dataclass

from rwkv_gpu import Completion

from .sizes import context_text


@dataclass
class Totals:
    """The sums over all answers."""

    answers: int = 0
    prompt: int = 0
    reused: int = 0
    new: int = 0
    decoded: int = 0  # new tokens without the first of each answer, which come with the prompt
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, done: Completion) -> None:
        """Counts one more answer. One that was stopped before its first token is none: its prompt was not computed."""
        if not done.tokens and done.finish_reason in ("abort", "error"):
            return
        self.answers += 1
        self.decoded += max(done.stats.new_tokens - 1, 0)
        self.prompt += done.stats.prompt_tokens
        self.reused += done.stats.reused_tokens
        self.new += done.stats.new_tokens
        self.prompt_seconds += done.stats.prompt_seconds
        self.decode_seconds += done.stats.decode_seconds

    def lines(self) -> list[str]:
        """For /stats."""
        computed = self.prompt - self.reused
        return [
            f"answers  {self.answers:,}, {self.new:,} tokens" + _rate(self.decoded, self.decode_seconds),
            f"prompts  {self.prompt:,} tokens, {self.reused:,} of them reused" + _rate(computed, self.prompt_seconds),
        ]


def context_line(used: int, context: int | None, trained: int | None) -> str:
    """context  180 of 192 tokens"""
    if context is not None:
        return f"context  {min(used, context):,} of {context:,} tokens" + (", full" if used >= context else "")
    return f"context  {used:,} tokens, {context_text(context, trained)}"


def answer_line(done: Completion, max_tokens: int) -> str:
    """prompt 412 tok/s · reused 8,120 of 8,164 · answer 212 tokens at 52.3 tok/s"""
    stats = done.stats
    parts = [f"prompt {stats.prompt_tokens:,} tokens at {stats.prompt_rate:,.0f} tok/s"]
    if stats.reused_tokens:
        parts = [f"prompt {stats.prompt_rate:,.0f} tok/s", f"reused {stats.reused_tokens:,} of {stats.prompt_tokens:,}"]
    parts.append(f"answer {stats.new_tokens:,} tokens at {stats.decode_rate:,.1f} tok/s")
    if done.finish_reason == "length" and stats.new_tokens >= max_tokens:
        parts.append(f"cut at max_tokens {max_tokens:,}")
    return " · ".join(parts)


def _rate(tokens: int, seconds: float) -> str:
    return f", {tokens / seconds:,.1f} tok/s" if tokens and seconds else ""
