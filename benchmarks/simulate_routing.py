"""Prompt tokens that are not computed again on a skewed trace of many turns: by router, beside one that knows all.

    python -m benchmarks.simulate_routing

Conversations come at random times, with as many turns as a heavy-tailed law gives; a few system messages are shared by
most of them (Zipf). Each replica keeps the prefixes of as many tokens as its cache has, and forgets those that were not
used for longest. The router is the one of `serve --device`: `Affinity` and `ranked`. The all-knowing one sees every
cache, and of two ways to use that the better one counts: always where most of the prompt is, or there unless another
has much less to do. `one cache` is what all caches together would give: no router reaches it.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import click

from rwkv_gpu.server.replicas.affinity import Affinity, beginnings_of
from rwkv_gpu.server.replicas.policy import SLACK, Load, ranked

RATE = 5000.0  # prompt tokens that a replica computes in a second
SPEED = 50.0  # tokens of an answer in a second
SYSTEMS = 20  # system messages
PAUSE = 30.0  # seconds between two turns of a conversation, at the median


@dataclass(frozen=True)
class Asked:
    """A request of the trace."""

    time: float
    conversation: int
    turn: int
    system: int
    lengths: tuple[int, ...]  # tokens of the system message, and of each message so far
    answer: int


@dataclass
class Replica:
    """A cache of prefixes, and requests that end some time."""

    most: int  # tokens
    prefixes: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)  # (conversation, turn): tokens
    tokens: int = 0  # of all prefixes
    ends: list[float] = field(default_factory=list)

    def cached(self, asked: Asked) -> int:
        """Tokens of a prompt that are here: of the conversation's last turn, or of the system message."""
        for turn in range(asked.turn - 1, -1, -1):
            if (asked.conversation, turn) in self.prefixes:
                return self.prefixes[asked.conversation, turn]
        return self.prefixes.get((-1, asked.system), 0)

    def serve(self, asked: Asked) -> int:
        """Answers a request; the tokens that were here."""
        cached = self.cached(asked)
        prompt = sum(asked.lengths)
        seconds = (prompt - cached) / RATE + asked.answer / SPEED
        heapq.heappush(self.ends, asked.time + seconds)
        self._keep((-1, asked.system), asked.lengths[0])
        self._keep((asked.conversation, asked.turn), prompt + asked.answer)
        self.tokens -= self.prefixes.pop((asked.conversation, asked.turn - 1), 0)  # the new one has all of it
        return cached

    def running(self, now: float) -> int:
        """Requests that have not ended."""
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
        return len(self.ends)

    def _keep(self, name: tuple[int, int], tokens: int) -> None:
        self.tokens += tokens - self.prefixes.get(name, 0)
        self.prefixes[name] = tokens
        self.prefixes.move_to_end(name)
        while self.tokens > self.most and len(self.prefixes) > 1:
            self.tokens -= self.prefixes.popitem(last=False)[1]


def trace(conversations: int, seconds: float, random: Random) -> list[Asked]:
    """All requests, in the order of their times."""
    found: list[Asked] = []
    weights = [1 / (1 + rank) for rank in range(SYSTEMS)]
    for conversation in range(conversations):
        now = random.uniform(0, seconds)
        system = random.choices(range(SYSTEMS), weights)[0]
        lengths = [200 + 40 * system]
        for turn in range(min(60, int(random.paretovariate(1.1)))):
            lengths.append(int(random.lognormvariate(4.6, 0.8)))
            answer = int(random.lognormvariate(5.3, 0.6))
            found.append(Asked(now, conversation, turn, system, tuple(lengths), answer))
            lengths.append(answer)
            now += answer / SPEED + random.lognormvariate(math.log(PAUSE), 1.0)
    return sorted(found, key=lambda asked: asked.time)


Router = Callable[[Asked, Sequence[Replica]], int]


def ours() -> Router:
    """The router of `serve --device`."""
    affinity: Affinity = Affinity()

    def route(asked: Asked, replicas: Sequence[Replica]) -> int:
        roles = ("user", "assistant")
        messages = [{"role": "system", "content": str(asked.system)}]
        messages += [
            {"role": roles[n % 2], "content": f"{asked.conversation} {n} {length}"}
            for n, length in enumerate(asked.lengths[1:])
        ]
        beginnings = beginnings_of("", {"messages": messages})
        loads = [Load(number, replica.running(asked.time)) for number, replica in enumerate(replicas)]
        chosen = ranked(loads, affinity.find(beginnings))[0]
        affinity.remember(beginnings, chosen)
        return chosen

    return route


def at_random(random: Random) -> Router:
    """Any replica."""
    return lambda _, replicas: random.randrange(len(replicas))


def all_knowing(slack: float) -> Router:
    """Where most of the prompt is, among replicas that have at most so many requests more than the idlest."""

    def route(asked: Asked, replicas: Sequence[Replica]) -> int:
        running = [replica.running(asked.time) for replica in replicas]
        cached = [replica.cached(asked) for replica in replicas]
        near = [n for n, busy in enumerate(running) if busy <= min(running) + slack]
        return max(near, key=lambda n: (cached[n], -running[n]))

    return route


def cached_share(requests: Sequence[Asked], replicas: int, cache: int, route: Router) -> float:
    """The share of all prompt tokens that was cached."""
    all_replicas = [Replica(cache) for _ in range(replicas)]
    cached = sum(all_replicas[route(asked, all_replicas)].serve(asked) for asked in requests)
    return cached / sum(sum(asked.lengths) for asked in requests)


def compared(conversations: int, seconds: float, replicas: int, cache: int, seed: int = 1) -> dict[str, float]:
    """The cached share by router."""
    requests = trace(conversations, seconds, Random(seed))
    return {
        "one cache": cached_share(requests, 1, replicas * cache, lambda *_: 0),
        "all-knowing": max(cached_share(requests, replicas, cache, all_knowing(slack)) for slack in (SLACK, math.inf)),
        "ours": cached_share(requests, replicas, cache, ours()),
        "random": cached_share(requests, replicas, cache, at_random(Random(seed))),
    }


def settings() -> Iterator[tuple[int, float, int, int]]:
    """Conversations, seconds, replicas, and tokens of each cache: calm, busy, and with small caches."""
    yield 2000, 3600.0, 4, 400_000
    yield 2000, 900.0, 4, 400_000
    yield 2000, 3600.0, 4, 50_000
    yield 4000, 3600.0, 16, 100_000


@click.command()
def main() -> None:
    heads = ("one cache", "all-knowing", "ours", "of it", "random")
    print(f"{'conversations':>6} {'in':>7} {'replicas':>8} {'cache':>9} " + " ".join(f"{head:>11}" for head in heads))
    for conversations, seconds, replicas, cache in settings():
        found = compared(conversations, seconds, replicas, cache)
        found["of it"] = found["ours"] / found["all-knowing"]
        print(
            f"{conversations:6} {seconds:5.0f} s {replicas:8} {cache:9,} "
            + " ".join(f"{found[head]:11.1%}" for head in heads)
        )


if __name__ == "__main__":
    main()
