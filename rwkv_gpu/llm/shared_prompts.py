"""System prompts whose cached prefixes all tenants share, as plain text and as a message of a chat template."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ..engine.cache.prefix_index import TOKEN, Key, key_of, shared
from ..errors import BadInput, BadTemplate
from ..text.base import Tokenizer
from .chat_format import ChatFormat

ENDINGS = ("a", " b", "\n")  # texts that may follow a prompt; a token that spans the end of the prompt is not shared


def forms(text: str, tokenizer: Tokenizer, chat_format: Callable[[], ChatFormat]) -> Iterator[Key]:
    """The keys of a shared prompt up to its end, as far as they do not depend on what follows."""
    yield _common([tokenizer.encode(text + ending, special=True) for ending in ENDINGS])
    with suppress(BadInput, BadTemplate):  # a model without a template, or one without system messages
        question = {"role": "user", "content": "a"}
        systems = [{"role": "system", "content": text + ending} for ending in ENDINGS]
        yield _common([chat_format().prompt([system, question]).transcript.ids for system in systems])


def _common(texts: Sequence[Sequence[int]]) -> Key:
    first, *others = map(key_of, texts)
    return first[: TOKEN * min(shared(first, other) for other in others)]
