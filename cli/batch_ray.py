"""Answers the lines of a batch on a Ray cluster. Ray is imported on use."""

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub_names import BUILTIN
from rwkv_gpu.ray import check_extra

from .batch_answer import Job
from .batch_files import Line
from .model_name import ModelName

PATIENCE = 5.0  # seconds for a connection


@dataclass(frozen=True)
class Cluster:
    """The cluster of a batch."""

    address: str
    actors: int | None  # maximum; None is as many as fit


def results_on_ray(
    cluster: Cluster, model: str, job: Job, loading: dict[str, Any], left: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, Line]]:
    """Yields the id and result of each line, as they are ready.

    Each line is a separate task, so its result arrives as soon as it is known. A written result is never computed
    again, even if any of the processes is killed.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # this process shows a bar and a summary instead
    check_extra("data")
    import ray

    from rwkv_gpu.ray.stage import results

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        reach(cluster.address)
    except OSError as error:
        raise BadInput(f"--ray {cluster.address}: there is no cluster: {error}; start one by `ray start`") from None
    try:
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"--ray {cluster.address}: {reason}; if the cluster has a token, set RAY_AUTH_MODE=token and copy "
            "~/.ray/auth_token from its first machine"
        ) from None
    try:
        # The built-in model has another path on other machines.
        name = BUILTIN if model == ModelName.path(BUILTIN) else model
        for line, result in results(left, cluster.actors, name, job, loading):
            yield line, json.loads(result)
    finally:
        ray.shutdown()


def reach(address: str) -> None:
    """Raises OSError if HOST:PORT does not accept connections: Ray would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
