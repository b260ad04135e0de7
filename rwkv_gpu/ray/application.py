"""The Ray Serve application: a front, which reads requests, and replicas, each with a server and models."""

from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from .front import Front
from .replica import Replica
from .routing import ConversationRouter
from .settings import Settings

FRONT_REQUESTS = 4096  # requests in progress per front
STATS_SECONDS = 2.0  # between two reports of a replica about its conversations
DRAIN_CHECK_SECONDS = 0.2  # seconds between checks whether a replica has drained
GRACE = 10.0  # seconds to write states to the store, after the drain time


def application(settings: Settings) -> Any:
    """The deployments, with defaults that fit the settings; a Ray YAML file may change each."""
    config = settings.setup.config
    resource = settings.resource
    if resource == "auto":
        resource = resource_of(settings.device, ray.cluster_resources() if ray.is_initialized() else {})
    replica = serve.deployment(Replica).options(
        name="Replica",
        ray_actor_options=actor_options(resource, settings.amount, settings.cpus),
        autoscaling_config=AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            target_ongoing_requests=config.sequences,
        ),
        # A replica accepts a few more requests than it answers at a time, so that it never idles; others wait at the
        # front.
        max_ongoing_requests=2 * config.sequences,
        max_queued_requests=config.max_queue,
        request_router_config=RequestRouterConfig(
            request_router_class=ConversationRouter, request_routing_stats_period_s=STATS_SECONDS
        ),
        graceful_shutdown_timeout_s=config.drain + GRACE,
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_SECONDS,
        health_check_period_s=5,
    )
    front = serve.deployment(Front).options(
        name="Front",
        num_replicas=settings.fronts,
        max_ongoing_requests=FRONT_REQUESTS,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_timeout_s=config.drain + GRACE,
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_SECONDS,
    )
    return front.bind(replica.bind(settings), settings)


def resource_of(device: str, cluster: dict[str, float]) -> str:
    """The resource that Ray counts for a replica: `wgpu` if the cluster has it, else GPUs."""
    if device.lower() == "cpu":
        return "none"
    return "wgpu" if "wgpu" in cluster else "GPU"


def actor_options(resource: str, amount: float, cpus: float) -> dict[str, Any]:
    """The resources that a replica needs."""
    match resource:
        case "GPU":
            return {"num_cpus": cpus, "num_gpus": amount}
        case "wgpu":
            return {"num_cpus": cpus, "resources": {"wgpu": amount}}
    return {"num_cpus": cpus}
