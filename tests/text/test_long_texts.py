"""Tokenising a long text leaves the interpreter to other threads: a server has streams to send meanwhile."""

import threading
import time

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden

SENTENCE = "The sea is wide and the fish are small. "
MOST = 0.5  # of the time that it takes: where it was one call of C, another thread waited for more than 90% of it


def longest_wait(work) -> float:
    """The longest time for which another thread could not run, as a part of the time that some work takes."""
    waits, over = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not over.wait(0.0005):
            now = time.perf_counter()
            waits.append(now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    over.set()
    thread.join()
    return max(waits) / took


def test_another_thread_runs_while_a_long_text_is_tokenised():
    with GGUFFile.open(golden("tiny-glm4.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    text = SENTENCE * 8000
    # The best of three: on a machine with other work any thread may wait.
    assert min(longest_wait(lambda: tokenizer.encode(text)) for _ in range(3)) < MOST


def test_a_long_text_has_the_ids_of_its_parts():
    with GGUFFile.open(golden("tiny-glm4.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    words = [word for _ in range(400) for word in ("Sea", " wide", "\n", " 42")]
    long = tokenizer.encode("".join(words) * 3)
    assert len("".join(words) * 3) > 10_000
    assert tokenizer.decode(long) == "".join(words) * 3
    assert long == [one for _ in range(1200) for one in tokenizer.encode("Sea wide\n 42")]
