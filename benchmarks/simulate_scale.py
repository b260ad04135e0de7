"""What conversations cost in adapters, in traffic of states and in the store, and where one adapter bends.

    python -m benchmarks.simulate_scale

Rates are those measured on an H200 (docs/speed.md, with matrix units). An adapter is simulated step by step: each step
decodes a token of every running answer, up to 32, and reads a chunk of the prompts that wait. Conversations take turns
with a pause between them. A turn finds its state on the adapter, or fetches it from the store where that is faster than
computing its tokens, or computes them. The adapter keeps the states that fit into its memory, the last used ones.
"""

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import click

SLOTS = 32  # answers at a time
CHUNK = 512  # tokens of prompts in a step
MB, GB = 1e6, 1e9


@dataclass(frozen=True)
class Model:
    """A model on an adapter, as measured."""

    name: str
    prefill: float  # tokens of a prompt in a second
    steps: Sequence[tuple[int, float]]  # answers at a time, and tokens of all of them in a second
    state: float  # bytes, whatever the length
    token: float  # bytes for each token
    memory: float  # bytes for states, on the adapter
    compact: float = 0  # bytes for each token in the store, where it has a form that is smaller

    def state_bytes(self, tokens: float) -> float:
        """Bytes of the state of a text."""
        return self.state + self.token * tokens

    def stored_bytes(self, tokens: float, link: float) -> float:
        """Bytes of the state in the store: in the smaller form where only that is faster than computing."""
        size = self.state_bytes(tokens)
        return size if size / link < tokens / self.prefill or not self.compact else self.compact * tokens

    def step(self, running: int) -> float:
        """Seconds of a step that decodes, between what was measured."""
        known = [(count, count / rate) for count, rate in self.steps]
        for (low, fast), (high, slow) in itertools.pairwise(known):
            if running <= high:
                return fast + (slow - fast) * (running - low) / (high - low)
        return known[-1][1]


RWKV = Model("RWKV-7 2.9B", 13_124, ((1, 888), (16, 3_644), (32, 4_521)), 21.6 * MB, 0, 125 * GB)
LLAMA = Model("Llama 3.1 8B", 9_635, ((1, 502), (16, 1_879), (32, 3_019)), 0, 131_072, 122 * GB, 131_072 * 34 / 64)
LLAMA_Q8 = replace(LLAMA, name="the same, --kv q8", token=LLAMA.compact)
MODELS = (RWKV, LLAMA, LLAMA_Q8)


@dataclass(frozen=True)
class Use:
    """How people converse."""

    pause: float = 60.0  # seconds from an answer to the next question
    history: int = 2000  # tokens of a conversation before a turn
    question: int = 100  # tokens
    answer: int = 200

    @property
    def turn(self) -> float:
        """Seconds from one question to the next, about."""
        return self.pause + self.answer / 100


@dataclass(frozen=True)
class Outcome:
    """What came of an adapter with so many conversations."""

    conversations: int
    first_token: float  # seconds, of 95 in 100 turns
    busy: float  # share of the time that it had steps
    cached: float  # share of turns that found their state here
    fetched: float  # share that fetched it
    read: float  # bytes in a second from the store


def simulate(
    model: Model,
    conversations: int,
    use: Use,
    *,
    link: float | None,
    moves: float = 0.05,
    seconds: float = 240.0,
    seed: int = 1,
) -> Outcome:
    """One adapter. `link` is the bandwidth of the store, in bytes a second; so many of the turns `moves` here anew."""
    random = Random(seed)
    fits = int(model.memory / model.state_bytes(use.history))
    size = 0.0 if link is None else model.stored_bytes(use.history, link)
    states: OrderedDict[int, None] = OrderedDict(
        (conversation, None) for conversation in range(min(conversations, fits))
    )
    asked = [(random.uniform(0, use.turn), conversation) for conversation in range(conversations)]
    heapq.heapify(asked)
    waiting: list[list[float]] = []  # when it was asked, conversation, tokens to read
    fetching: list[tuple[float, float, float]] = []  # when it is here, when it was asked, conversation
    running: dict[int, int] = {}  # tokens left by conversation
    firsts: list[float] = []
    now = busy = link_free = 0.0
    turns = cached = fetched = 0
    while now < seconds:
        while asked and asked[0][0] <= now:
            when, conversation = heapq.heappop(asked)
            turns += 1
            if random.random() < moves:
                states.pop(conversation, None)
            if conversation in states:
                states.move_to_end(conversation)
                cached += 1
                waiting.append([when, conversation, use.question])
                continue
            if link is not None and size / link < use.history / model.prefill:
                link_free = max(now, link_free) + size / link
                heapq.heappush(fetching, (link_free, when, conversation))
                fetched += 1
            else:
                waiting.append([when, conversation, use.history + use.question])
        while fetching and fetching[0][0] <= now:
            _, when, conversation = heapq.heappop(fetching)
            waiting.append([when, int(conversation), use.question])
        room = SLOTS - len(running)
        if not running and not (waiting and room):
            now = min([one[0] for one in (asked[:1] + fetching[:1])] or [seconds])  # type: ignore[operator]
            continue
        took, left = 0.0, CHUNK
        for one in waiting[:room]:
            part = min(left, one[2])
            one[2] -= part
            left -= part
            took += part / model.prefill
        took += model.step(len(running)) if running else 0.0
        now, busy = now + took, busy + took
        for conversation in [*running]:
            running[conversation] -= 1
            if not running[conversation]:
                del running[conversation]
                states[conversation] = None
                states.move_to_end(conversation)
                while len(states) > fits:
                    states.popitem(last=False)
                heapq.heappush(asked, (now + random.expovariate(1 / use.pause), conversation))
        for one in [one for one in waiting[:room] if one[2] <= 0]:
            waiting.remove(one)
            running[int(one[1])] = use.answer
            firsts.append(now - one[0])
    firsts += [now - one[0] for one in waiting]
    firsts.sort()
    late = firsts[int(0.95 * len(firsts))] if firsts else 0.0
    return Outcome(
        conversations, late, busy / now, cached / max(1, turns), fetched / max(1, turns), fetched * size / now
    )


def bend(model: Model, use: Use, *, link: float | None, most: float = 1.0, **more: float) -> Outcome:
    """The most conversations of one adapter whose first token takes less than `most` seconds in 95 of 100 turns."""
    low, high = 1, 4096
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        if simulate(model, middle, use, link=link, **more).first_token <= most:  # type: ignore[arg-type]
            low = middle
        else:
            high = middle
    return simulate(model, low, use, link=link, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Cost:
    """What so many conversations need."""

    adapters: int
    written: float  # bytes in a second to the store
    read: float  # from it
    stored: float  # bytes of the states of all conversations

    def share_of(self, link: float) -> float:
        """How much of the links of all adapters its traffic takes. Above 1 states are dropped, and computed again."""
        return max(self.written, self.read) / (self.adapters * link)


def cost(model: Model, conversations: int, use: Use, at_bend: Outcome, link: float) -> Cost:
    """Adapters at four fifths of where one bends.

    A turn of an RNN writes two states, after the question and after the answer; keys and values have both in one.
    """
    adapters = math.ceil(conversations / (0.8 * at_bend.conversations))
    size = (2 if model.state else 1) * model.stored_bytes(use.history, link)
    pays = at_bend.fetched > 0
    turns = conversations / use.turn
    read = at_bend.read * conversations / at_bend.conversations
    return Cost(adapters, turns * size if pays else 0.0, read, conversations * size if pays else 0.0)


@click.command()
@click.option("--link", default=10.0, show_default=True, help="Gbit a second between an adapter and the store.")
@click.option("--history", default="2000,8000", show_default=True, help="Tokens of a conversation before a turn.")
def main(link: float, history: str) -> None:
    for tokens in map(int, history.split(",")):
        use = Use(history=tokens)
        print(f"\nConversations of {tokens:,} tokens; a turn each {use.turn:.0f} seconds; the store by {link:g} Gbit")
        print(
            f"{'model':20} {'store':>6} {'bends at':>9} {'busy':>5} {'cached':>7} {'fetched':>8} {'from the store':>15}"
        )
        for model in MODELS:
            ends = {}
            for name, bandwidth in (("none", None), ("one", link * GB / 8)):
                found = ends[name] = bend(model, use, link=bandwidth)
                print(
                    f"{model.name:20} {name:>6} {found.conversations:9,} {found.busy:5.0%} {found.cached:7.0%} "
                    f"{found.fetched:8.0%} {found.read / MB:10,.0f} MB/s"
                )
            for conversations in (10, 1_000, 100_000):
                need = cost(model, conversations, use, ends["one"], link * GB / 8)
                print(
                    f"  {conversations:9,} conversations: {need.adapters:5,} adapters, "
                    f"{need.written / GB:9.3f} GB/s written ({need.share_of(link * GB / 8):.0%} of the links), "
                    f"{need.read / GB:8.3f} GB/s read, {need.stored / GB:10,.1f} GB stored"
                )


if __name__ == "__main__":
    main()
