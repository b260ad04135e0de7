"""A soak of the server: requests of all APIs for an hour, of which 10% are broken off. No resource may be lost.

python -m tests.server.soak [--seconds 3600] [--warm-up 300] [--warm-up-requests 8000] [--clients 16] [--pause 0.5]

The server runs in this process and the clients in another one, so that only the server's memory is measured. One of
its models computes infinite numbers, and one loses its device every few hundred steps. The process is forked every few
seconds (`soak_faults.py`).

Prints how requests ended. Exits with 1 if a page, a state, a slot, a file descriptor or a thread is missing, if memory
has grown, if a greedy stream had another text, or if a request ended in an unexpected way. Each minute it prints
memory, descriptors, threads and the number of requests; after each round also the free resources of each model.
"""

import argparse
import asyncio
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.stored_responses import StoredResponses
from tests.process import PATIENCE, allocated, descriptors, resident
from tests.server.gate import until
from tests.server.serving import LLAMA, MODEL, Served, serving
from tests.server.soak_faults import LOST, OVERFLOWING, Forks, Losses, faulty_models
from tests.soak import PREFIXES, Standing

READ_EACH = 60.0  # seconds
FORK_EACH = 20.0  # seconds
# Growth from the middle third of the rounds to the last third. Over the whole time, memory grows by 3% without a leak:
# caches of the server and of malloc's threads fill, and freed memory is scattered over more pages until it is reused.
# Resident memory of idle rounds varies by 2% in both directions. Its medians alone would hide a leak of 100 bytes for
# each request, so objects of Python and bytes in use by malloc are counted, too: they vary by less than 1%.
MAX_GROWTH = 0.02
MEASURES = ("resident memory", "memory in use by malloc", "objects of Python")
RESPONSES = 32  # responses that the server stores
BROKEN_OFF = 0.1  # share of all requests that end at a random moment
HI = [{"role": "user", "content": "Hi"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
WEATHER = {"name": "weather", "parameters": CITY}
TOOLS = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required", "parallel_tool_calls": False}
STEADY = {"prompt": "The sea", "max_tokens": 12, "temperature": 0, "stream": True}  # whose text never changes


@dataclass(frozen=True)
class Kind:
    """A kind of request, and the statuses that are allowed for it."""

    path: str
    body: dict[str, Any] | None  # None is a GET
    statuses: tuple[int, ...] = (200, 429)


STREAM = {"stream": True, "temperature": 1.0}
KINDS = {
    "steady": Kind("/v1/completions", STEADY),
    "chat": Kind("/v1/chat/completions", {"messages": HI, "max_tokens": 20, **STREAM}),
    "chat, whole": Kind("/v1/chat/completions", {"messages": HI, "max_tokens": 9}),
    "several": Kind("/v1/completions", {"prompt": "Once", "n": 2, "max_tokens": 9, **STREAM}),
    "long prompt": Kind("/v1/completions", {"prompt": "The sea is wide. " * 150, "max_tokens": 3}),
    "another model": Kind("/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 20, **STREAM}),
    "schema": Kind("/v1/chat/completions", {"messages": HI, "max_tokens": 60, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}}),
    "regex": Kind("/v1/completions", {"prompt": "a", "regex": "[a-z ]{3,9}", **STREAM}),
    "tools": Kind("/v1/chat/completions", {"messages": HI, "max_tokens": 200, **TOOLS}),
    "responses": Kind("/v1/responses", {"input": "Hi", "max_output_tokens": 9, "stream": True}),
    "messages": Kind("/v1/messages", {"messages": HI, "max_tokens": 9, "stream": True}),
    "ollama": Kind("/api/chat", {"messages": HI, "options": {"num_predict": 9}}),
    "llama-server": Kind("/completion", {"prompt": "a", "n_predict": 9, "stream": True}),
    "embedding": Kind("/v1/embeddings", {"input": ["a sea", "a fish"]}),
    "resumable": Kind("/v1/completions", {"prompt": "Hi", "max_tokens": 9, "resumable": True, **STREAM}),
    "refused": Kind("/v1/completions", {"prompt": "a", "temperature": -1}, (400, 429)),
    "unknown model": Kind("/v1/completions", {"model": "none", "prompt": "a"}, (404,)),
    "no prompt": Kind("/v1/completions", {}, (400, 429)),
    "bad numbers": Kind("/v1/completions", {"model": OVERFLOWING, "prompt": "a"}, (500, 429)),
    "bad numbers, streamed": Kind("/v1/completions", {"model": OVERFLOWING, "prompt": "a", **STREAM}, (200, 500, 429)),
    "bad embedding": Kind("/v1/embeddings", {"model": OVERFLOWING, "input": ["a sea"]}, (500, 429)),
    "lost device": Kind("/v1/completions", {"model": LOST, "prompt": "a", "max_tokens": 20}, (200, 503, 429)),
    "lost device, streamed": Kind("/v1/completions", {"model": LOST, "prompt": "a", **STREAM}, (200, 503, 429)),
    "metrics": Kind("/metrics", None, (200,)),
    "slots": Kind("/slots", None, (200,)),
    "health": Kind("/health", None, (200,)),
}  # fmt: skip


# ------------------------------------------------------------ the clients


async def ask(port: int, kind: Kind, rng: random.Random, steady: set[bytes]) -> str:
    """Sends one request and waits for its answer, however long it takes. Returns its result."""
    body = b""
    if kind.body is not None:
        varied = "prompt" in kind.body and kind.body is not STEADY and rng.random() < 0.5
        content = {**kind.body, "prompt": rng.choice(PREFIXES) + str(rng.randrange(50))} if varied else kind.body
        body = json.dumps(content).encode()
    head = f"{'GET' if kind.body is None else 'POST'} {kind.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        sent = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        if rng.random() < BROKEN_OFF:
            writer.write(sent[: rng.randrange(len(sent))] if rng.random() < 0.2 else sent)
            await asyncio.sleep(rng.random() / 5)
            return "broken off"
        writer.write(sent)
        answer = await reader.read()
    finally:
        writer.close()
    status = int(answer.split(b" ", 2)[1])
    if kind.body is STEADY and status == 200:
        blocks = answer.split(b"data: ")[1:-1]  # without [DONE]
        pieces = (b"".join(block.split(b"\n\n")[0:1]) for block in blocks)
        steady.add(b"".join(_text(piece) for piece in pieces))
    return str(status) if status in kind.statuses else f"WRONG {status} {answer[-200:]!r}"


def _text(chunk: bytes) -> bytes:
    return b"".join(choice["text"].encode() for choice in json.loads(chunk)["choices"])


async def ask_for(port: int, options: argparse.Namespace) -> Counter[str]:
    """Runs many clients for some seconds. A greedy stream whose text changes counts as an error."""
    ended: Counter[str] = Counter()
    steady: set[bytes] = set()
    end = time.monotonic() + options.seconds

    async def client(number: int) -> None:
        rng = random.Random(options.seed << 32 | number)
        while time.monotonic() < end:
            name = rng.choice([*KINDS])
            ended[f"{name}: {await ask(port, KINDS[name], rng, steady)}"] += 1
            await asyncio.sleep(2 * options.pause * rng.random())

    await asyncio.gather(*map(client, range(options.clients)))
    if len(steady) > 1:
        ended[f"WRONG: {len(steady)} texts of one greedy stream"] += 1
    return ended


# ------------------------------------------------------------ the server


def clients_of(server: Served, options: argparse.Namespace, seconds: float, seed: int) -> Counter[str]:
    """Runs clients in another process. Ends them if an answer is lost: they wait, and the server makes no progress."""
    command = [sys.executable, "-m", "tests.server.soak", "--client", str(server.port), "--seconds", str(seconds)]
    command += ["--clients", str(options.clients), "--pause", str(options.pause), "--seed", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        done, since = -1, 0.0
        while True:
            try:
                found, _ = asking.communicate(timeout=min(READ_EACH, options.patience))
                break
            except subprocess.TimeoutExpired:
                requests = server.service.metrics.requests.total()
                taken = f"{resident() / 1e6:8.1f} MB, {descriptors()} descriptors, {threading.active_count()} threads"
                print(f"{taken} after {requests:,} requests", flush=True)
            if progress(server) != done:
                done, since = progress(server), time.monotonic()
            elif time.monotonic() - since > options.patience:
                asking.kill()
                return Counter([f"WRONG: clients wait, and no token or request in {options.patience:g} s"])
    assert asking.returncode == 0
    until(lambda: not server.service._calls)  # truncated HTTP headers wait for the rest
    return Counter(json.loads(found))


def progress(server: Served) -> int:
    """Counts the requests that have ended, and the tokens of all requests."""
    metrics = server.service.metrics
    return metrics.requests.total() + sum(metrics.first_token._counts) + sum(metrics.next_token._counts)


def standing(server: Served) -> list[Standing]:
    """Returns the resources of all models when there are no requests. The model whose device was lost is reloaded."""
    models = server.service.catalogue.models
    until(lambda: all(model.llm is not None for model in models))
    return [Standing.of(model.llm) for model in models if model.llm is not None]


def memory() -> tuple[int, ...]:
    """Returns what `MEASURES` names, of an idle server."""
    return resident(), allocated(), sys.getallocatedblocks()


def growth(taken: list[tuple[int, ...]]) -> dict[str, float]:
    """Returns the growth of each measure between the medians of the middle third of some rounds and of the last."""
    third = max(1, len(taken) // 3)
    middle, last = (zip(*rounds, strict=True) for rounds in (taken[-2 * third : -third], taken[-third:]))
    pairs = zip(MEASURES, map(median, middle), map(median, last), strict=True)
    return {name: after / max(1, before) - 1 for name, before, after in pairs if before}


def soak(options: argparse.Namespace) -> tuple[Counter[str], list[str], dict[str, float]]:
    """Returns the results of requests, the errors found afterwards, and the growth of memory."""
    losses, models = Losses(options.seed), (ServedModel("quiet", str(MODEL)), ServedModel("tiny", str(LLAMA)))
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(
            *models, *faulty_models(Path(folder)), load=losses.load, catalogue={"own_process": True}, max_queue=8
        ) as server,
    ):
        # Full after the warm-up: 1,024 responses take 8 MB, which would count as growth.
        server.service.responses = StoredResponses(most=RESPONSES)
        for model in server.service.catalogue.models:
            server.request("POST", "/v1/completions", {"model": model.name, "prompt": "a", "max_tokens": 1})
        forks = Forks(server)
        with forks.each(min(FORK_EACH, options.seconds / 4)):
            ended, before, taken = soaked(server, options)
        after = standing(server)
        wrong = [line for one, was in zip(after, before, strict=True) for line in one.lost(was)]
        queues = server.service._queues.values()
        if any(queue.running or queue.waiting for queue in queues) or server.service.running:
            wrong.append("slots or requests are left")
    ended += forks.ended + Counter({"devices lost": losses.count})
    return ended, wrong + sorted(how for how in ended if "WRONG" in how), growth(taken)


def soaked(server: Served, options: argparse.Namespace) -> tuple[Counter[str], list[Standing], list[tuple[int, ...]]]:
    """Returns the results of requests, and the resources of the models after the warm-up, and memory of all rounds."""
    end, ended = time.monotonic() + options.seconds, Counter[str]()
    # Bounded caches fill during the first thousands of requests, which take long on a busy machine.
    for round in itertools.count():
        ended += clients_of(server, options, options.warm_up, options.seed + round)
        left = end - time.monotonic()
        if server.service.metrics.requests.total() >= options.warm_up_requests or left < options.seconds / 2:
            break
    before = standing(server)
    taken = [memory()]
    print("after the warm-up", *before, sep="\n", flush=True)
    for round in range(options.rounds):
        ended += clients_of(server, options, left / options.rounds, options.seed - 1 - round)
        print("\n".join(map(str, standing(server))), flush=True)
        taken.append(memory())
        print(dict(zip(MEASURES, taken[-1], strict=True)), flush=True)
    return ended, before, taken


def main() -> None:
    """Soaks a server and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--warm-up", type=float, default=300, help="of these seconds: until memory is read first")
    parser.add_argument(
        "--warm-up-requests", type=int, default=8000, help="the warm-up goes on until so many have come"
    )
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two requests of a client")
    parser.add_argument(
        "--rounds", type=int, default=12, help="of the time after the warm-up: all is measured after each"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        help="seconds without progress after which waiting clients have lost an answer",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(asyncio.run(ask_for(options.client, options))))
        return
    ended, wrong, grown = soak(options)
    for how, count in sorted(ended.items()):
        print(f"{count:8} {how}")
    print(f"{sum(ended.values()):,} requests in {options.seconds:g} s")
    print(*(f"{name} grew by {share:.2%}" for name, share in grown.items()), sep="; ")
    wrong += [f"{name} grew by more than {MAX_GROWTH:.0%}" for name in grown if grown[name] > MAX_GROWTH]
    print("\n".join(wrong) or "everything is as at the start")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
