"""The last events of a stream, which are stored for a client that reconnects."""

import asyncio

import pytest

from rwkv_gpu.server import streams
from rwkv_gpu.server.errors import ApiError
from rwkv_gpu.server.streams import Recording, Streams


def read(recording: Recording, after: int) -> list[bytes]:
    """Returns the events after one of them, from a stream that has ended."""

    async def all_of_it() -> list[bytes]:
        return [piece async for piece in recording.read(after)]

    return b"".join(asyncio.run(all_of_it())).split(b"\n\n")[:-1]


def recorded(count: int) -> Recording:
    recording = Recording(b"", lambda: None)
    for number in range(1, count + 1):
        recording.add(b"data: %d\n\n" % number)
    recording.end()
    return recording


def test_a_client_gets_all_events_after_the_last_that_it_has_seen_and_none_twice(monkeypatch):
    monkeypatch.setattr(streams, "MAX_BYTES", 200)
    recording = recorded(50)
    first = recording.events[0][0]
    assert 1 < first < 50
    for after in range(first - 1, 51):
        expected = [b"id: %d\ndata: %d" % (number, number) for number in range(after + 1, 51)]
        assert read(recording, after) == expected


def test_every_gap_is_reported_however_small(monkeypatch):
    monkeypatch.setattr(streams, "MAX_BYTES", 200)
    recording = recorded(50)
    for after in range(recording.events[0][0] - 1):
        with pytest.raises(ApiError, match="no longer stored") as failure:
            read(recording, after)
        assert failure.value.status == 410


def test_streams_that_can_be_resumed_are_bounded_and_those_that_have_ended_make_room(monkeypatch):
    monkeypatch.setattr(streams, "MAX_STREAMS", 2)

    async def run() -> None:
        stopped: list[int] = []
        kept = Streams()
        first, second = (kept.open(b"", lambda n=n: stopped.append(n)) for n in range(2))
        with pytest.raises(ApiError, match="2 streams") as failure:
            kept.open(b"", lambda: None)
        assert failure.value.status == 429
        second.end()
        third = kept.open(b"", lambda: None)
        assert (len(kept), stopped) == (2, [1])
        assert kept.find(first.id, b"") is first
        for one in (first, third):
            kept.drop(one)

    asyncio.run(run())
