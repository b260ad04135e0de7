"""Formats the results of a bench, as a table for people or rows for machines."""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..gguf.file import GGUFFile
from ..gguf.formats import SIZES
from ..gpu.device import Device
from .bench import Result
from .roofline import Roofline
from .sizes import aligned, counted, sized

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """The measured model."""

    name: str
    nbytes: int
    parameters: int
    formats: Mapping[str, int]  # bytes by format, largest first

    @classmethod
    def of(cls, file: GGUFFile) -> "Subject":
        """Reads the properties of an open file."""
        formats: Counter[str] = Counter()
        for tensor in file.tensors.values():
            formats[SIZES[tensor.type].name] += tensor.nbytes
        parameters = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        return cls(file.path.name.removesuffix(".gguf"), file.nbytes, parameters, dict(formats.most_common()))

    def __str__(self) -> str:
        return f"{self.name}: {sized(self.nbytes)}, {counted(self.parameters)} parameters ({self.mix})"

    @property
    def mix(self) -> str:
        """Q4_K 83%, Q6_K 12%, F16 5%"""
        total = sum(self.formats.values())
        shares = {name: nbytes / total for name, nbytes in self.formats.items()}
        return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)


@dataclass(frozen=True)
class Place:
    """The device of a measurement."""

    device: str
    backend: str
    driver: str
    roofline: Roofline | None
    version: str  # version of this package
    matrix_units: bool = False  # whether they are used

    @classmethod
    def of_parts(cls, names: Sequence[str], version: str) -> "Place":
        """The devices of a model that is split."""
        return cls(" + ".join(names), "split", "", None, version)

    @classmethod
    def of(cls, device: Device | None, roofline: Roofline | None, version: str) -> "Place":
        """The device of a model on one GPU, or in numpy."""
        if device is None:
            return cls("cpu", "numpy", "", None, version)
        adapter = device.adapter
        return cls(adapter.name, adapter.backend, adapter.driver, roofline, version, device.capabilities.fragment > 0)

    def __str__(self) -> str:
        if self.roofline is None:
            return f"{self.device} ({self.backend})"
        stream, fma = self.roofline.bytes_per_second / 1e9, self.roofline.flops_per_second / 1e9
        rates = f"streams {stream:,.1f} GB/s, computes {fma:,.0f} GFLOP/s"
        halves = self.roofline.half_flops_per_second
        rates += ", matrix units in use" if self.matrix_units else ""
        rates += f" ({halves / 1e9:,.0f} in float16)" if halves else ""
        return f"{self.device} ({self.backend}, {self.driver}), {rates}"


def facts(subject: Subject, place: Place) -> dict[str, Any]:
    """Data shared by all rows of a run."""
    known: dict[str, Any] = {
        "model": subject.name, "size": subject.nbytes, "parameters": subject.parameters, "formats": subject.mix,
        "device": place.device, "backend": place.backend, "driver": place.driver, "version": place.version,
    }  # fmt: skip
    if place.roofline is not None:
        known["stream_gbps"] = round(place.roofline.bytes_per_second / 1e9, 3)
        known["fma_gflops"] = round(place.roofline.flops_per_second / 1e9, 3)
    return known


def row(subject: Subject, place: Place, result: Result) -> Row:
    """One result with all its data."""
    work, cost = result.workload, result.cost
    known = facts(subject, place) | {
        "test": work.name, "n_prompt": 0 if work.kind == "tg" else work.tokens,
        "n_gen": work.tokens if work.kind == "tg" else 0, "depth": work.depth, "batch": work.batch,
        "chunk_size": None if work.kind == "tg" else work.chunk,
        "tokens_per_second": round(result.rate, 4), "stddev": round(result.deviation, 4),
        "samples": [round(rate, 4) for rate in result.rates],
    }  # fmt: skip
    if result.texts_per_second is not None:
        known["texts_per_second"] = round(result.texts_per_second, 4)
    if result.tokens_per_joule is not None:
        known["tokens_per_joule"] = round(result.tokens_per_joule, 4)
    if cost is not None:
        known |= {
            "dispatches": cost.dispatches,
            "dispatches_per_layer": round(cost.dispatches_per_layer, 2),
            "dispatches_per_token": round(cost.steps * cost.dispatches / work.total, 3),
            "cpu_share": round(result.host_share, 4),
            "bytes_per_token": cost.nbytes // work.total,
            "flops_per_token": cost.flops // work.total,
        }
    if cost is not None and place.roofline is not None:
        known |= {
            "bandwidth_share": round(result.bandwidth_share, 4),
            "compute_share": round(result.compute_share, 4),
        }
    return known


def heading(subject: Subject, place: Place, repeats: int) -> str:
    """The lines above a table."""
    return f"{subject}\n{place}\nrwkv-gpu {place.version}, mean ± sd of {repeats}\n"


TEXTS, ENERGY = "texts/s", "tok/J"
COLUMNS: dict[str, Callable[[Row], str]] = {
    "test": lambda r: str(r["test"]),
    "tok/s": lambda r: f"{_digits(r['tokens_per_second'])} ± {_digits(r['stddev'])}",
    TEXTS: lambda r: _digits(r["texts_per_second"]) if "texts_per_second" in r else "",
    ENERGY: lambda r: _digits(r["tokens_per_joule"]) if "tokens_per_joule" in r else "",
    "batch": lambda r: str(r["batch"]),
    "chunk": lambda r: str(r["chunk_size"] or ""),
    "calls": lambda r: str(r.get("dispatches", "")),
    "per layer": lambda r: _digits(r["dispatches_per_layer"]) if "dispatches" in r else "",
    "CPU": lambda r: _percent(r.get("cpu_share")),
    "MB/tok": lambda r: _digits(r["bytes_per_token"] / 1e6) if "bytes_per_token" in r else "",
    "of peak GB/s": lambda r: _percent(r.get("bandwidth_share")),
    "of peak FLOP/s": lambda r: _percent(r.get("compute_share")),
}


def markdown(rows: Sequence[Row]) -> str:
    """A table with aligned columns; those without any value are left out."""
    columns = {name: [column(one) for one in rows] for name, column in COLUMNS.items()}
    columns = {name: values for name, values in columns.items() if any(values)}
    return aligned([tuple(columns), *zip(*columns.values(), strict=True)])


def as_csv(rows: Sequence[Row]) -> str:
    """One line per row; samples are in JSON only."""
    names = list(dict.fromkeys(name for one in rows for name in one if name != "samples"))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


RENDER: dict[str, Callable[[Sequence[Row]], str]] = {
    "md": markdown,
    "csv": as_csv,
    "json": lambda rows: json.dumps(list(rows), indent=2, ensure_ascii=False),
    "jsonl": lambda rows: "\n".join(json.dumps(one, ensure_ascii=False) for one in rows),
}


def _digits(number: float) -> str:
    """At least three significant digits."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
