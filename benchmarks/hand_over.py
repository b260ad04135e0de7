"""The first token of a conversation that moves to another machine: with the store's rule, fetching, and computing.

    sudo .venv/bin/python -m benchmarks.hand_over                     # root, for network namespaces; and redis-server
    sudo .venv/bin/python -m benchmarks.hand_over --bandwidths 1gbit --model tests/golden/tiny-llama.gguf

A server of the store and the process that has the first turn are in one network namespace, the process that goes on in
another. The link between them has the bandwidth (tc tbf). Nothing else of the machine changes: the namespaces and the
server go when the script ends. Each conversation is asked three times, from an engine that has nothing stored: without
the store, with a fetch that is waited for whatever it takes, and by the rule. `loses` is the time by the rule over the
time without the store.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

import rwkv_gpu

BANDWIDTHS = "10gbit,1gbit,100mbit,3mbit,1mbit"
FIRST, SECOND = "10.77.7.1", "10.77.7.2"
SPACES = ("rwkv-gpu-first", "rwkv-gpu-second")
PORT = 6399
SECRET = b"a secret of the benchmark"
NEXT = "And what came then?"
WAYS = ("computed", "fetched", "by the rule")


@click.group(invoke_without_command=True)
@click.option("--bandwidths", default=BANDWIDTHS, show_default=True)
@click.option("--model", multiple=True, help="A GGUF file; none is the built-in RNN.")
@click.option("--tokens", default="300", show_default=True, help="Of the first question, about.")
@click.option("--trials", default=3, show_default=True)
@click.pass_context
def main(ctx: click.Context, bandwidths: str, model: tuple[str, ...], tokens: str, trials: int) -> None:
    if ctx.invoked_subcommand is not None:
        return
    if os.geteuid() != 0 or not shutil.which("redis-server"):
        sys.exit("this needs root (network namespaces) and redis-server")
    lengths = [int(one) for one in tokens.split(",")]
    print(f"{'model':24} {'link':>8} {'tokens':>7} {'computed':>9} {'fetched':>9} {'by the rule':>12} {'loses':>6}  it")
    with ExitStack() as stack:
        stack.enter_context(namespaces())
        stack.enter_context(redis())
        for path in model or ("", "tests/golden/tiny-llama.gguf"):
            conversations = role(SPACES[0], "writer", path, {"lengths": lengths, "trials": trials + 1})
            for bandwidth in bandwidths.split(","):
                limit(bandwidth)
                for row in role(SPACES[1], "reader", path, {"conversations": conversations}):
                    show(Path(path).stem or "built-in", bandwidth, row)


def show(name: str, bandwidth: str, row: dict[str, Any]) -> None:
    times = [statistics.median(row["seconds"][way]) for way in WAYS]
    shown = " ".join(f"{1000 * one:{width}.0f} ms" for one, width in zip(times, (6, 6, 9), strict=True))
    print(f"{name:24} {bandwidth:>8} {row['tokens']:7} {shown} {times[2] / times[0]:6.2f}  {row['what']}", flush=True)


# ---------------------------------------------------------------- the machine


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def namespaces() -> Iterator[None]:
    """Two network namespaces with a link between them."""
    try:
        for space in SPACES:
            run("ip", "netns", "add", space)
        run("ip", "link", "add", "veth", "netns", SPACES[0], "type", "veth", "peer", "name", "veth", "netns", SPACES[1])
        for space, address in zip(SPACES, (FIRST, SECOND), strict=True):
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "veth")
            for device in ("lo", "veth"):
                run("ip", "-n", space, "link", "set", device, "up")
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)


def limit(bandwidth: str) -> None:
    """The link has this bandwidth in both directions."""
    for space in SPACES:
        command = ["tc", "-n", space, "qdisc", "replace", "dev", "veth", "root", "tbf", "rate", bandwidth]
        run(*command, "burst", "4mb" if bandwidth.endswith("gbit") else "16kb", "latency", "100ms")


@contextmanager
def redis() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--bind", FIRST, "--port", str(PORT), "--save", "", "--protected-mode", "no"]
        server = subprocess.Popen(
            ["ip", "netns", "exec", SPACES[0], *command, "--dir", folder], stdout=subprocess.DEVNULL
        )
        time.sleep(1)
        try:
            yield
        finally:
            server.terminate()
            server.wait()


def role(space: str, name: str, path: str, task: dict[str, Any]) -> Any:
    """What a process in a namespace says."""
    command = ["ip", "netns", "exec", space, sys.executable, "-m", "benchmarks.hand_over", name, path]
    done = subprocess.run(command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# ---------------------------------------------------------------- the processes


def opened(path: str) -> rwkv_gpu.LLM:
    llm = rwkv_gpu.load(path or None, device="cpu", store=f"valkey://{FIRST}:{PORT}/0", store_key=SECRET)
    llm.chat_format = llm.chat_format_of("chatml")
    return llm


def ask(llm: rwkv_gpu.LLM, messages: list[dict[str, str]], count: int) -> tuple[str, dict[str, Any], float]:
    """The answer, the usage and the seconds."""
    began = time.perf_counter()
    done = llm.create_chat_completion(messages, max_tokens=count, temperature=0)
    return done["choices"][0]["message"]["content"], done["usage"], time.perf_counter() - began


@main.command()
@click.argument("path")
def writer(path: str) -> None:
    """Has the first turns."""
    task, conversations = json.load(sys.stdin), []
    with opened(path) as llm:
        for length in task["lengths"]:
            for trial in range(task["trials"]):
                words = iter(range(10**6))
                text = f"{trial}: "
                while len(llm.tokenize(text)) < length:
                    text += f"The fox number {next(words)} met an owl. "
                messages = [{"role": "user", "content": text}]
                answer, usage, _ = ask(llm, messages, 8)
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": NEXT}]
                conversations.append({"length": length, "messages": messages, "tokens": usage["prompt_tokens"]})
    print(json.dumps(conversations))


@main.command()
@click.argument("path")
def reader(path: str) -> None:
    """Goes on, three times each."""
    conversations, rows = json.load(sys.stdin)["conversations"], {}
    with opened(path) as llm:
        assert llm.states is not None
        states, rule = llm.states, llm.states.rule
        usual = {name: getattr(rule, name) for name in ("pays", "waits", "patience")}
        ways: dict[str, Callable[[], None]] = {
            "computed": lambda: setattr(states, "wants", lambda _: False),
            "fetched": lambda: vars(rule).update(
                pays=lambda *_: True, waits=lambda *_: 600.0, patience=lambda _: 600.0
            ),
            "by the rule": lambda: vars(rule).update(usual),
        }
        for number, conversation in enumerate(conversations):
            is_warm = conversation["length"] in rows  # the first of each length is to measure
            row = rows.setdefault(
                conversation["length"], {"tokens": 0, "seconds": {way: [] for way in WAYS}, "what": []}
            )
            for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
                vars(states).pop("wants", None)
                ways[way]()
                llm._driver.call(lambda _: None)  # the turn before has ended there, too
                states.flush(time.monotonic() + 60)  # the link has nothing else to do
                states._dropping = False
                llm._driver.call(lambda engine: engine.prefixes.clear())
                before = vars(states.counts).copy()
                _, usage, seconds = ask(llm, conversation["messages"], 1)
                if is_warm:
                    row["tokens"] = usage["prompt_tokens"]
                    row["seconds"][way].append(seconds)
                    if way == WAYS[-1]:
                        row["what"].append(what(before, vars(states.counts)))
    for row in rows.values():
        row["what"] = ", ".join(f"{row['what'].count(one)} {one}" for one in dict.fromkeys(row["what"]))
    print(json.dumps([*rows.values()]))


def what(before: dict[str, int], after: dict[str, int]) -> str:
    """What the rule did."""
    if after["fetched"] > before["fetched"]:
        return "hedged, fetched" if after["hedged"] > before["hedged"] else "fetched"
    return "computed" if after["skipped"] > before["skipped"] else "hedged, computed"


if __name__ == "__main__":
    main()
