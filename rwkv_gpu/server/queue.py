"""Requests that wait for a model: bounded in number and in prompt tokens, short prompts first, and nobody for ever."""

import asyncio
import itertools
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .errors import ApiError

# A prompt of so many tokens goes before one that came a second earlier and is so much longer. So a short prompt passes
# long ones, and a long one is passed only by what comes within the next seconds.
TOKENS_PER_SECOND = 1000
SLOWEST_RETRY = 60.0  # seconds that a client is told to wait at most
RECENT = 0.1  # weight of the last request in the mean time that a request takes


@dataclass(eq=False)
class Ticket:
    """A request's place: it waits, then it has seats, then it is gone."""

    arrived: float
    tokens: int = 0  # of its prompt, once they are known
    seats: int = 0  # that it has
    wanted: int = 1
    turn: asyncio.Future[None] | None = field(default=None, repr=False)


class Queue:
    """Seats of a model's engine, and those who wait for one. All methods run in one event loop."""

    def __init__(self, seats: int, most: int, most_tokens: int) -> None:
        self._seats = seats
        self._free = seats
        self._most = most
        self._most_tokens = most_tokens
        self._tickets: set[Ticket] = set()  # that have no seats yet
        self._line: list[tuple[float, int, Ticket]] = []  # by when they are due
        self._numbers = itertools.count()
        self._tokens = 0  # of those in the line
        self._seconds = 1.0  # that a request takes, about

    @property
    def waiting(self) -> int:
        """Requests that have no seats yet."""
        return len(self._tickets)

    @property
    def running(self) -> int:
        """Seats that are taken."""
        return self._seats - self._free

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of those that wait."""
        return self._tokens

    def enter(self) -> Ticket:
        """A place for a request, before its prompt is looked at; refused at once where the queue is full."""
        if len(self._tickets) >= self._most + self._free or self._tokens >= self._most_tokens:
            raise self._full()
        ticket = Ticket(asyncio.get_running_loop().time())
        self._tickets.add(ticket)
        return ticket

    async def wait(self, ticket: Ticket, tokens: int, answers: int) -> None:
        """Waits until a request of so many prompt tokens and answers may go on."""
        ticket.tokens, ticket.wanted = tokens, min(answers, self._seats)
        if not self._line and self._free >= ticket.wanted:
            self._seat(ticket)
            return
        if self._tokens and self._tokens + tokens > self._most_tokens:
            raise self._full()
        ticket.turn = asyncio.get_running_loop().create_future()
        self._tokens += tokens
        heappush(self._line, (ticket.arrived + tokens / TOKENS_PER_SECOND, next(self._numbers), ticket))
        await ticket.turn

    def leave(self, ticket: Ticket) -> None:
        """A request has ended, or has gone while it waited."""
        if ticket.seats:
            took = asyncio.get_running_loop().time() - ticket.arrived
            self._seconds += RECENT * (took - self._seconds)
            self._free += ticket.seats
            ticket.seats = 0
        elif ticket in self._tickets:
            self._tickets.discard(ticket)
            if ticket.turn is not None:
                self._line = [one for one in self._line if one[2] is not ticket]
                heapify(self._line)
                self._tokens -= ticket.tokens
        self._next()

    def _next(self) -> None:
        """Seats for those whose turn it is."""
        while self._line and self._free >= self._line[0][2].wanted:
            _, _, ticket = heappop(self._line)
            self._tokens -= ticket.tokens
            self._seat(ticket)
            assert ticket.turn is not None
            if not ticket.turn.done():
                ticket.turn.set_result(None)

    def _seat(self, ticket: Ticket) -> None:
        self._tickets.discard(ticket)
        ticket.seats = ticket.wanted
        self._free -= ticket.seats

    def _full(self) -> ApiError:
        seconds = min(SLOWEST_RETRY, self._seconds * (1 + len(self._tickets)) / self._seats)
        return ApiError(
            429,
            f"{len(self._tickets)} requests with {self._tokens:,} prompt tokens wait already; ask again later",
            code="queue_full",
            retry_after=seconds,
        )
