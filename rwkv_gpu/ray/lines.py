"""The lines of `rwkv-gpu batch` as a pipeline of Ray Data: a pool of actors, each with a model."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.data

from rwkv_gpu.cli.batch_answer import Job

from .stage import Answer, Batch, actor_pool, resources


class Lines(Answer):
    """Answers lines of a batch file."""

    def __call__(self, batch: Batch) -> Batch:
        """The results as texts, by the ids of lines."""
        results = [json.dumps(self.answer(str(line)), ensure_ascii=False) for line in batch["line"]]
        return {"name": batch["name"], "result": results}


def results(
    left: Sequence[tuple[str, str]], actors: int | None, model: str, job: Job, loading: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """The id and the result of each line, as they are ready."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"name": name, "line": line} for name, line in left]
    options = {**loading, "settings": job.settings, "template": job.template, "sequences": job.sequences}
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
