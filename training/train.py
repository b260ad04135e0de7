"""Trains the model and writes its parameters, by the names of their GGUF tensors, to .npz files.

    python -m training.train OUT --minutes 8 --shards 1500 --compile

It takes the minutes it is given, meant for an NVIDIA H200. Without CUDA it runs too, slowly: try --layers 1 --width 64.
"""

import argparse
import math
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import corpus
from .model import RWKV7, Matrix, Shape
from .vocabulary import load


def groups(model: RWKV7, decay: float) -> list[dict[str, object]]:
    """Matrices decay, vectors do not."""
    matrices = [m.weight for m in model.modules() if isinstance(m, Matrix)]
    known = {id(weight) for weight in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def loss_of(model: torch.nn.Module, ids: Tensor, worth: Tensor, first: Tensor) -> Tensor:
    """The mean cross entropy of what follows each token, weighted by what it is worth."""
    logits = model(ids[:, :-1], first)
    losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * worth.flatten()).sum() / worth.sum()


def on_device(batch: corpus.Shard, device: str) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.from_numpy(batch.ids.astype(np.int64))
    return ids.to(device), torch.from_numpy(batch.worth).to(device), torch.from_numpy(batch.first).to(device)


def ahead(batches: Iterator[corpus.Shard], count: int = 16) -> Iterator[corpus.Shard]:
    """The same batches, made in another thread while the last ones are in use."""
    waiting: queue.Queue[corpus.Shard | None] = queue.Queue(count)

    def fill() -> None:
        for batch in batches:
            waiting.put(batch)
        waiting.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := waiting.get()) is not None:
        yield batch


class Schedule:
    """How far training is, by the clock, and the learning rate there."""

    def __init__(self, seconds: float, rate: float) -> None:
        self.start, self.seconds, self.rate = time.perf_counter(), seconds, rate

    @property
    def done(self) -> float:
        return (time.perf_counter() - self.start) / self.seconds

    def at(self, step: int) -> float:
        warm = min(1.0, (step + 1) / 200)
        return warm * self.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, self.done))))


def train(args: argparse.Namespace, device: str) -> RWKV7:
    """The trained model."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    shape = Shape(vocabulary=len(load().tokens), width=args.width, layers=args.layers, inner=args.inner)
    model = RWKV7(shape).to(device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    run = torch.compile(model) if args.compile else model
    optimiser = torch.optim.AdamW(groups(model, args.decay), lr=args.rate, betas=(0.9, 0.98), eps=1e-12)
    schedule, tokens, rounding = Schedule(60 * args.minutes, args.rate), 0, False
    stream = ahead(corpus.batches(args.shards, 1000, args.rows, args.workers))
    for step, batch in enumerate(stream):
        if step == 20:
            tokens, schedule.start = 0, time.perf_counter()  # compilation does not count
        if step > 20 and schedule.done >= 1:
            break
        if schedule.done > 0.7 and not rounding:
            model.round(1)
            rounding = True
        for group in optimiser.param_groups:
            group["lr"] = schedule.at(step)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(run, *on_device(batch, device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tokens += batch.ids.size
        if step % args.log == 0:
            rate = tokens / (time.perf_counter() - schedule.start)
            print(
                f"{step:6} {schedule.done:6.1%} loss {loss.item():.4f} norm {norm.item():.2f} {rate:,.0f} tokens/s",
                flush=True,
            )
    return model


def held_out(model: RWKV7, device: str, rows: int) -> float:
    """The loss on a shard of documents that were never trained on."""
    shard = corpus.make(corpus.HELD_OUT)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        losses = [loss_of(model, *on_device(batch, device)).item() for batch in corpus.pieces(shard, rows)]
    return float(np.mean(losses))


def save(out: Path, tensors: dict[str, np.ndarray], parts: int = 4) -> None:
    """OUT.0.npz, OUT.1.npz ...: small files travel better."""
    names = sorted(tensors, key=lambda name: -tensors[name].size)
    for part in range(parts):
        np.savez(f"{out}.{part}.npz", **{name: tensors[name] for name in names[part::parts]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    for name, value in (("minutes", 8.0), ("rate", 1.5e-3), ("decay", 0.1)):
        parser.add_argument(f"--{name}", type=float, default=value)
    for name, value in (
        ("shards", 400),
        ("rows", 64),
        ("workers", 14),
        ("width", 512),
        ("layers", 4),
        ("inner", 1024),
        ("seed", 1),
        ("log", 50),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = train(args, device)
    for how in (0, 1):
        model.round(how)
        print(f"held out, {'rounded' if how else 'as trained'}: {held_out(model, device, min(args.rows, 64)):.4f}")
    save(args.out, {name: value.detach().float().cpu().numpy() for name, value in model.state_dict().items()})


if __name__ == "__main__":
    main()
