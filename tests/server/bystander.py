"""A client that repeats the same stream while other requests run. Its text must never change."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tests.process import PATIENCE
from tests.server.gate import until
from tests.server.serving import Served, events

TEXT = "/v1/completions"
BYSTANDER = {"prompt": "The sea", "max_tokens": 30, "temperature": 0, "stream": True}


def told(content: bytes) -> str:
    """Returns the text of a complete stream."""
    found = events(content)
    assert found[-1] == "[DONE]"
    return "".join(choice["text"] for one in found[:-1] for choice in one["choices"])


@contextlib.contextmanager
def bystander(server: Served, *, model: str | None = None, **headers: str) -> Iterator[None]:
    """Runs a bystander during the block. Afterwards, no request may be left."""

    def stream() -> str:
        return told(server.request("POST", TEXT, {**BYSTANDER, "model": model}, **headers)[2])

    failed: list[Any] = []
    texts, over = [stream()], threading.Event()

    def again() -> None:
        try:
            while not over.is_set():
                texts.append(stream())
        except BaseException as error:  # noqa: BLE001  it is raised below
            failed.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
        seen = len(texts)
        until(lambda: len(texts) > seen or bool(failed))  # at least one after the fault
    finally:
        over.set()
        thread.join(PATIENCE)
    if failed:
        raise failed[0]
    assert len({*texts}) == 1
    until(lambda: not server.service._calls and not server.engine._slots.sequences)
