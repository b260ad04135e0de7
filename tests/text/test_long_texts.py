"""Tokenising a long text lets other threads run, because a server must continue its streams."""

import itertools
import threading

import pytest

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.interruption import MASK, Interrupted, interruptible
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden
from tests.text.test_t5 import FIELDS as T5
from tests.text.test_wordpiece import FIELDS as WORDS
from tests.text.vocabularies import rwkv, spm, unigram

SENTENCE = "The sea is wide and the fish are small. "
ENOUGH = 3  # how often another thread runs meanwhile: during one C call that holds the GIL it runs once


def turns_of_another_thread(work) -> int:
    """Returns how often another thread runs while some work is done."""
    turns, over = itertools.count(), threading.Event()

    def run() -> None:
        while not over.wait(0.0005):
            next(turns)

    thread = threading.Thread(target=run)
    thread.start()
    before = next(turns)
    work()
    after = next(turns)
    over.set()
    thread.join()
    return after - before - 1


def test_another_thread_runs_while_a_long_text_is_tokenised():
    with GGUFFile.open(golden("tiny-glm4.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    text = SENTENCE * 8000
    # On a machine with other work any thread may wait, but not each time.
    assert any(turns_of_another_thread(lambda: tokenizer.encode(text)) >= ENOUGH for _ in range(20))


def test_a_long_text_has_the_ids_of_its_parts():
    with GGUFFile.open(golden("tiny-glm4.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    words = [word for _ in range(400) for word in ("Sea", " wide", "\n", " 42")]
    long = tokenizer.encode("".join(words) * 3)
    assert len("".join(words) * 3) > 10_000
    assert tokenizer.decode(long) == "".join(words) * 3
    assert long == [one for _ in range(1200) for one in tokenizer.encode("Sea wide\n 42")]


@pytest.mark.parametrize("text", ["a" * 3 * MASK, "ab " * 3 * MASK])
@pytest.mark.parametrize("fields", [rwkv(), spm(), unigram(), T5, WORDS], ids=["rwkv", "spm", "unigram", "t5", "bert"])
def test_tokenising_a_long_text_ends_when_it_is_no_longer_needed(fields, text):
    tokenizer = load_tokenizer(fields)
    checks = itertools.count()
    with interruptible(lambda: next(checks) == 1), pytest.raises(Interrupted):
        tokenizer.encode(text)
    assert next(checks) == 2
    assert tokenizer.decode(tokenizer.encode(text))
