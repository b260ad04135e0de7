"""Formats the statistics of answers: tokens, speeds, and why they were cut off."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rwkv_gpu import Completion, Stats
from rwkv_gpu.llm.completion import FORMS
from rwkv_gpu.llm.info import Info

from .sizes import at_rate, context_text


def model_line(info: Info) -> str:
    """A model on one line: name · llama 8B Q4_K_M · device · context 8,192 tokens"""
    size = f"{info.parameters / 1e9:.2g}B" if info.parameters >= 1e9 else f"{info.parameters / 1e6:.3g}M"
    context = f"context {context_text(info.context, info.trained_context)}"
    return f"{info.name or info.architecture} · {info.architecture} {size} {info.format} · {info.device} · {context}"


@dataclass
class Totals:
    """Totals of the answers in a chat."""

    answers: list[Stats] = field(default_factory=list)

    def add(self, done: Completion) -> None:
        """Adds an answer, unless it was stopped before its first token, when its prompt was not computed yet."""
        if done.tokens or done.finish_reason not in ("abort", "error"):
            self.answers.append(done.stats)

    def lines(self) -> list[str]:
        """The lines of /stats."""
        names = ("prompt_tokens", "reused_tokens", "new_tokens", "prompt_seconds", "decode_seconds")
        prompt, reused, new, reading, decoding = (sum(getattr(one, name) for one in self.answers) for name in names)
        # The first token of each answer is computed with the prompt.
        decoded = sum(max(one.new_tokens - 1, 0) for one in self.answers)
        drafted = sum(one.drafted_tokens for one in self.answers)
        accepted = sum(one.accepted_tokens for one in self.answers)
        drafts = f"drafts   {drafted:,} tokens, {accepted:,} of them accepted"
        if drafted:
            drafts += gain_text([one for one in self.answers if one.drafted_tokens][-1])
        return [
            f"answers  {len(self.answers):,}, {new:,} tokens" + _rate(decoded, decoding),
            f"prompts  {prompt:,} tokens, {reused:,} of them reused" + _rate(prompt - reused, reading),
            *[drafts] * (drafted > 0),
        ]


def gain_text(stats: Stats) -> str:
    """, 1.42 times as fast as without: the speed of steps with drafts, if it is known."""
    return "" if stats.draft_gain is None else f", {stats.draft_gain:.2f} times as fast as without"


def context_line(used: int, context: int | None, trained: int | None) -> str:
    """context  180 of 192 tokens"""
    if context is not None:
        return f"context  {min(used, context):,} of {context:,} tokens" + (", full" if used >= context else "")
    return f"context  {used:,} tokens, {context_text(context, trained)}"


def answer_line(done: Completion, max_tokens: int) -> str:
    """prompt at 412 tok/s · reused 8,120 of 8,164 · answer 212 tokens at 52.3 tok/s"""
    stats = done.stats
    parts = [f"prompt {stats.prompt_tokens:,} tokens{at_rate(stats.prompt_rate, 0)}"]
    if stats.reused_tokens:
        parts = [f"prompt{at_rate(stats.prompt_rate, 0)}", f"reused {stats.reused_tokens:,} of {stats.prompt_tokens:,}"]
    parts.append(f"answer {stats.new_tokens:,} tokens{at_rate(stats.decode_rate)}")
    if done.finish_reason == "length" and stats.new_tokens >= max_tokens:
        parts.append(f"cut at max_tokens {max_tokens:,}")
    return " · ".join(parts)


def _rate(tokens: int, seconds: float) -> str:
    return f", {tokens / seconds:,.1f} tok/s" if tokens and seconds else ""


def truncation(done: Completion, max_tokens: int, settings: Mapping[str, Any]) -> str | None:
    """Why an answer ended too early, and the remedy; None if it is complete."""
    if done.finish_reason != "length" or max_tokens == 0:
        return None
    if done.stats.new_tokens >= max_tokens:
        text = f"the answer was cut off at {max_tokens:,} tokens; --max-tokens allows more, -1 any number"
    else:
        text = f"the answer was cut off after {done.stats.new_tokens:,} tokens: the context is full; see --context"
    return text + ("; the partial answer may not match its format" if any(settings.get(name) for name in FORMS) else "")
