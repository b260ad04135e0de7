"""The requests that wait for a model: limited in number and prompt tokens; short prompts first, without starvation."""

import asyncio
import itertools
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .errors import ApiError

# A request's due time is its arrival plus one second per TOKENS_PER_SECOND prompt tokens. So short prompts overtake
# long ones, and only requests that arrive within a few seconds overtake a long one.
TOKENS_PER_SECOND = 1000
BACKGROUND_DELAY = 3600.0  # a line of a batch is overtaken by requests that arrive up to this many seconds later
SLOWEST_RETRY = 60.0  # maximum seconds that a client is asked to wait
RECENT = 0.1  # weight of the last request in the mean duration of a request


@dataclass(eq=False)
class Ticket:
    """A request's position: it waits, then it holds slots, then it has left."""

    arrived: float
    tokens: int = 0  # prompt tokens, once known
    slots: int = 0  # number of slots that it holds
    wanted: int = 1
    background: bool = False  # whether it is a line of a batch, which takes no room in the queue
    turn: asyncio.Future[None] | None = field(default=None, repr=False)


class Queue:
    """The request slots of a model's engine, and the requests waiting for them. All methods run in one event loop."""

    def __init__(self, slots: int, most: int, max_tokens: int) -> None:
        self._slots = slots
        self._free = slots
        self._most = most
        self._max_tokens = max_tokens
        self._tickets: set[Ticket] = set()  # waiting, without slots
        self._line: list[tuple[float, int, Ticket]] = []  # sorted by due time
        self._numbers = itertools.count()
        self._tokens = 0  # prompt tokens of the waiting requests
        self._seconds = 1.0  # approximate duration of a request

    @property
    def waiting(self) -> int:
        """Number of requests waiting for slots."""
        return len(self._tickets)

    @property
    def running(self) -> int:
        """Number of slots in use."""
        return self._slots - self._free

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the waiting requests."""
        return self._tokens

    def enter(self, background: bool = False) -> Ticket:
        """Registers a request before its prompt is processed; refuses it if the queue is full."""
        others = sum(not ticket.background for ticket in self._tickets)
        if not background and (others >= self._most + self._free or self._tokens >= self._max_tokens):
            raise self._full()
        ticket = Ticket(asyncio.get_running_loop().time(), background=background)
        self._tickets.add(ticket)
        return ticket

    async def wait(self, ticket: Ticket, tokens: int, answers: int) -> None:
        """Waits until a request with `tokens` prompt tokens and `answers` answers may run."""
        due = ticket.arrived + tokens / TOKENS_PER_SECOND
        if ticket.background:
            due, tokens = due + BACKGROUND_DELAY, 0
        ticket.tokens, ticket.wanted = tokens, min(answers, self._slots)
        if not self._line and self._free >= ticket.wanted:
            self._admit(ticket)
            return
        if self._tokens and self._tokens + tokens > self._max_tokens:
            raise self._full()
        ticket.turn = asyncio.get_running_loop().create_future()
        self._tokens += tokens
        heappush(self._line, (due, next(self._numbers), ticket))
        await ticket.turn

    def leave(self, ticket: Ticket) -> None:
        """Removes a request that has ended, or was cancelled while waiting."""
        if ticket.slots:
            took = asyncio.get_running_loop().time() - ticket.arrived
            self._seconds += RECENT * (took - self._seconds)
            self._free += ticket.slots
            ticket.slots = 0
        elif ticket in self._tickets:
            self._tickets.discard(ticket)
            if ticket.turn is not None:
                self._line = [one for one in self._line if one[2] is not ticket]
                heapify(self._line)
                self._tokens -= ticket.tokens
        self._next()

    def _next(self) -> None:
        """Gives free slots to the next requests."""
        while self._line and self._free >= self._line[0][2].wanted:
            _, _, ticket = heappop(self._line)
            self._tokens -= ticket.tokens
            self._admit(ticket)
            assert ticket.turn is not None
            if not ticket.turn.done():
                ticket.turn.set_result(None)

    def _admit(self, ticket: Ticket) -> None:
        self._tickets.discard(ticket)
        ticket.slots = ticket.wanted
        self._free -= ticket.slots

    def _full(self) -> ApiError:
        seconds = min(SLOWEST_RETRY, self._seconds * (1 + len(self._tickets)) / self._slots)
        return ApiError(
            429,
            f"{len(self._tickets)} requests with {self._tokens:,} prompt tokens wait already; ask again later",
            code="queue_full",
            retry_after=seconds,
        )
