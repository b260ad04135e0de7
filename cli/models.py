"""`rwkv-gpu models`: the catalogue of popular models, those that fit this device first."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import click
from rich.cells import cell_len

from rwkv_gpu.engine.bus import memory_rate
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.memory import device_available, host_available
from rwkv_gpu.llm.catalogue import Entry
from rwkv_gpu.measure.sizes import sized

from .folders import hub
from .model_name import catalogue_option
from .options import shared
from .page import Page
from .printing import print_facts, print_table, print_text, terminal_width

EXTRA_SHARE, EXTRA = 0.1, 400 << 20  # memory in addition to weights: a context of some thousand tokens, and scratch
USABLE = 4.0  # tokens per second of a model that is recommended, if one is as fast: about as fast as one reads
FLOAT32 = 4.0e9  # bytes per billion parameters, as numpy computes with float32


@dataclass(frozen=True)
class Place:
    """A device, with its free memory and how fast it reads weights."""

    name: str
    free: int | None  # None if the driver does not report it
    rate: float  # bytes per second
    numpy: bool

    def needed(self, entry: Entry) -> float:
        """Bytes that a model needs, estimated from its file."""
        return (entry.parameters * FLOAT32 if self.numpy else entry.nbytes) * (1 + EXTRA_SHARE) + EXTRA

    def fits(self, entry: Entry) -> bool:
        """True if the model fits, as far as this is known."""
        return self.free is None or self.needed(entry) <= self.free

    def tokens_per_second(self, entry: Entry) -> float | None:
        """The maximum speed if every token reads all weights; None for encoders, which read them once per text."""
        if entry.kind != "chat":
            return None
        read = (entry.active or entry.parameters) * FLOAT32 if self.numpy else entry.read_bytes
        return self.rate / read


@click.command("models", cls=Page, epilog="Example: rwkv-gpu models; rwkv-gpu models code; rwkv-gpu models qwen3.5:4b")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@shared("as_json", "device")
@catalogue_option
def command(words: tuple[str, ...], device: str, as_json: bool) -> None:
    """List popular models, those that fit this device's memory first. Every command accepts their names.

    With WORDs, only models whose name or description has them: `models code`, `models tools 4b`. The name of one model
    shows everything about it. Tokens per second are the most that the memory allows: the measured bandwidth, divided
    by the bytes that a token reads. `rwkv-gpu fit NAME` computes the exact memory.
    """
    catalogue = hub().names
    one = catalogue.entry(words[0]) if len(words) == 1 else None
    entries = [one] if one is not None and one.name == words[0].lower() else matching(catalogue.entries, words)
    if not entries:
        raise BadInput(f"no model has {' and '.join(words)}; `rwkv-gpu models` lists all")
    place = place_of(device)
    if as_json:
        click.echo(json.dumps(as_data(entries, place), indent=2))
    elif len(entries) == 1:
        print_facts(details(entries[0], place))
    else:
        print_listing(entries, place)


def matching(entries: Sequence[Entry], words: Sequence[str]) -> list[Entry]:
    """The models whose name or description has all words."""
    return [entry for entry in entries if all(word.lower() in text_of(entry) for word in words)]


def text_of(entry: Entry) -> str:
    """The text in which words of a search are looked up."""
    return " ".join((entry.name, entry.strengths, entry.licence, entry.kind, abilities(entry))).lower()


def abilities(entry: Entry) -> str:
    """The special abilities of a model: thinking tools vision"""
    return " ".join(name for name in ("thinking", "tools", "vision") if getattr(entry, name))


def place_of(device: str) -> Place:
    """Opens the device and measures it."""
    choice = find(device)
    with nullcontext() if choice.adapter is None else Device(choice.adapter) as opened:
        free = host_available() if opened is None else device_available(opened)
        return Place(str(choice.adapter or "cpu, numpy"), free, memory_rate(opened), opened is None)


def as_data(entries: Sequence[Entry], place: Place) -> dict[str, object]:
    """The models as data."""
    rows = [
        {
            **asdict(entry), "hub_name": entry.hub_name, "fits": place.fits(entry),
            "needed": round(place.needed(entry)), "tokens_per_second": place.tokens_per_second(entry),
        }
        for entry in entries
    ]  # fmt: skip
    about = {"device": place.name, "free": place.free, "bytes_per_second": round(place.rate)}
    return {**about, "models": rows}


def rate_text(entry: Entry, place: Place) -> str:
    """Tokens per second with two significant digits."""
    rate = place.tokens_per_second(entry)
    return "" if rate is None else f"{float(f'{rate:.2g}'):,.0f}" if rate >= 1 else f"{rate:.1g}"


def context_short(entry: Entry) -> str:
    """A context length: 32K"""
    return f"{entry.context // 1024}K" if entry.context >= 1024 else str(entry.context)


COLUMNS: dict[str, Callable[[Entry, Place], str]] = {
    "name": lambda entry, _: entry.name,
    "download": lambda entry, _: sized(entry.nbytes),
    "tok/s": rate_text,
    "context": lambda entry, _: context_short(entry),
    "abilities": lambda entry, _: abilities(entry) if entry.kind == "chat" else entry.kind,
    "good at": lambda entry, _: entry.strengths,
    "licence": lambda entry, _: entry.licence,
}
IMPORTANCE = "name", "download", "tok/s", "good at", "abilities", "context", "licence"
LONGEST_NAME = 40  # maximum cells of a name that is not split, so that it can be copied
TO_THE_RIGHT = "download", "tok/s", "context"
NARROW_COLUMNS = "name", "download", "tok/s", "abilities"  # columns of the form with lines `name: value`
GAP = 2
USE = {"chat": "run", "embedding": "embed", "reranker": "serve"}


def print_listing(entries: Sequence[Entry], place: Place) -> None:
    """Prints the models in two groups, then the recommended ones."""
    free = "unknown memory" if place.free is None else f"{sized(place.free)} free"
    print_text(f"{place.name}: {free}, reads {place.rate / 1e9:,.0f} GB/s")
    columns = shown_columns(entries, place, terminal_width())
    fitting = [entry for entry in entries if place.fits(entry)]
    others = [entry for entry in entries if not place.fits(entry)]
    for title, group in (("fits", fitting), ("does not fit", others)):
        if group:
            print_text(f"\n{title}:")
            rows = [[COLUMNS[name](entry, place) for name in columns] for entry in group]
            print_table(columns, rows, TO_THE_RIGHT, longest=LONGEST_NAME)
    print_text("\n".join(["", *recommended(entries, place)]))


def shown_columns(entries: Sequence[Entry], place: Place, width: int | None) -> list[str]:
    """The most important columns that fit the terminal; all for a file or pipe."""
    if width is None:
        return [*COLUMNS]
    room, shown = width + GAP, set()
    for name in IMPORTANCE:
        cells = [COLUMNS[name](entry, place) for entry in entries]
        size = max(map(cell_len, (name, *cells)))
        if any(cells) and size + GAP <= room:
            shown.add(name)
            room -= size + GAP
    return [name for name in COLUMNS if name in (shown if len(shown) > 2 else NARROW_COLUMNS)]


def recommended(entries: Sequence[Entry], place: Place) -> Iterator[str]:
    """The first choices by memory size, and the first choice for this device."""
    by_size = sorted((entry.recommended, entry.name) for entry in entries if entry.recommended is not None)
    if by_size:
        yield "first choice by memory: " + ", ".join(f"{size} GB {name}" for size, name in by_size)
    fitting = [entry for entry in entries if entry.recommended is not None and place.fits(entry)]
    fast = [entry for entry in fitting if (place.tokens_per_second(entry) or 0) >= USABLE]
    if fast:
        yield f"for this device: rwkv-gpu run {max(fast, key=lambda entry: entry.recommended or 0).name}"
    elif fitting:
        chats = [entry for entry in entries if entry.kind == "chat" and place.fits(entry)]
        fastest = max(chats, key=lambda entry: place.tokens_per_second(entry) or 0)
        yield f"for this device, the fastest: rwkv-gpu run {fastest.name}"


def details(entry: Entry, place: Place) -> Iterator[tuple[str, str]]:
    """The properties of one model, as labels and values."""
    fits = "yes" if place.fits(entry) else "no"
    yield "name", entry.name
    yield "file", entry.hub_name
    yield "download", sized(entry.nbytes)
    yield "fits", f"{fits}, needs about {sized(place.needed(entry))} on {place.name}"
    if rate := rate_text(entry, place):
        yield "speed", f"at most {rate} tok/s"
    active = "" if entry.active is None else f", {entry.active:g} billion for each token"
    yield "parameters", f"{entry.parameters:g} billion{active}"
    yield "context", f"{entry.context:,} tokens"
    yield "good at", entry.strengths
    yield "abilities", abilities(entry) or "text"
    yield "licence", entry.licence
    yield "use it", f"rwkv-gpu {USE[entry.kind]} {entry.name}"
