"""A stage of Ray Data that answers rows with a model, and the pipeline of `rwkv-gpu batch --ray`.

questions = ray.data.read_json("questions.jsonl", lines=True)
answers = questions.map_batches(rwkv_gpu.ray.Answer, fn_constructor_args=["model.gguf"], batch_size=32,
                                concurrency=(1, 4), num_gpus=1)
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import ray
import ray.data

from rwkv_gpu.cli.batch_answer import Job, answer
from rwkv_gpu.cli.load_model import load_quietly
from rwkv_gpu.cli.model_name import ModelName

from .adapters import claim_of_actor

Batch = dict[str, Any]  # columns
RESULTS = {"text": "", "reasoning": "", "finish_reason": "", "prompt_tokens": 0, "new_tokens": 0, "error": ""}


class Answer:
    """An actor with a model. A row is a line of `rwkv-gpu batch`: `prompt` or `messages`, and settings of its own.

    It gets the columns of a result: `text`, `finish_reason`, `prompt_tokens`, `new_tokens`, or `error`.
    """

    def __init__(
        self, model: str = "builtin", *, sequences: int = 8, device: str = "auto", template: str | None = None,
        settings: Mapping[str, Any] | None = None, folder: str = "", **loading: Any,
    ) -> None:  # fmt: skip
        self._claim = claim_of_actor(device)
        self._job = Job(dict(settings or {}), template, sequences, folder)
        path = ModelName.path(model)
        assert path is not None
        self._llm = load_quietly(path, sequences=sequences, **{**loading, "device": self._claim.device})
        self._pool = ThreadPoolExecutor(sequences)

    def answer(self, line: str) -> dict[str, Any]:
        """The result of a line of a batch file."""
        result: dict[str, Any] = answer(self._llm, line, self._job)
        return result

    def __call__(self, batch: Batch) -> Batch:
        """The rows with the columns of their results."""
        lines = [json.dumps(row) for row in rows_of(batch)]
        results = [*self._pool.map(self.answer, lines)]
        return {**batch, **{name: [one.get(name, none) for one in results] for name, none in RESULTS.items()}}


def rows_of(batch: Batch) -> Iterator[dict[str, Any]]:
    """The rows of columns, with JSON values. Missing values are left out of a row."""
    count = len(next(iter(batch.values()), ()))
    for number in range(count):
        row = {name: plain(column[number]) for name, column in batch.items() if name not in RESULTS}
        yield {name: value for name, value in row.items() if value is not None}


def plain(value: Any) -> Any:
    """A numpy value as JSON."""
    if isinstance(value, np.ndarray | list):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, np.generic):
        value = value.item()
    return None if value is None or value != value else value  # NaN marks a missing number in a column


def actor_pool(sequences: int, actors: int | None) -> Any:
    """A pool of actors that answer `sequences` rows each: as many as fit, or at most `actors`."""
    return ray.data.ActorPoolStrategy(
        min_size=1,
        max_size=actors,
        max_tasks_in_flight_per_actor=2 * sequences,
        max_concurrent_calls_per_actor=sequences,
        enable_true_multi_threading=True,
    )


def resources(device: str) -> dict[str, Any]:
    """The resources that an actor needs, in the form of `map_batches`."""
    if device.lower() == "cpu":
        return {"num_cpus": 1}
    if "wgpu" in ray.cluster_resources():
        return {"num_cpus": 1, "resources": {"wgpu": 1}}
    return {"num_cpus": 1, "num_gpus": 1}


class Lines(Answer):
    """Answers lines of a batch file."""

    def __call__(self, batch: Batch) -> Batch:
        """The results as texts, by line id."""
        results = [json.dumps(self.answer(str(line)), ensure_ascii=False) for line in batch["line"]]
        return {"name": batch["name"], "result": results}


def results(
    left: Sequence[tuple[str, str]], actors: int | None, model: str, job: Job, loading: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yields the id and result of each line of a batch file as it completes, from a pool of actors with models."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"name": name, "line": line} for name, line in left]
    options = {**loading, "settings": job.settings, "template": job.template, "sequences": job.sequences}
    options["folder"] = os.path.abspath(job.folder)
    lines = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Lines,
        batch_size=1,
        compute=actor_pool(job.sequences, actors),
        fn_constructor_args=[model],
        fn_constructor_kwargs=options,
        **resources(loading["device"]),
    )
    for row in lines.iter_rows():
        yield row["name"], row["result"]
