"""The configuration of the application. Does not import Ray; filled in from the command line's table of options."""

from dataclasses import dataclass
from typing import Protocol

from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.service import Service


class Setup(Protocol):
    """The configuration of a server. It is sent to the process of each replica."""

    @property
    def config(self) -> ServerConfig:
        """The settings of the server."""

    def service(self, device: str) -> Service:
        """Its models on a device, not loaded yet."""


@dataclass(frozen=True)
class Settings:
    """The server of each replica, and the number of replicas."""

    setup: Setup
    device: str  # auto, cpu, or adapters, one for each replica
    min_replicas: int
    max_replicas: int
    fronts: int
    resource: str  # auto, GPU, wgpu or none: the resource that Ray counts for each replica
    amount: float  # amount of the resource
    cpus: float
    log_format: str
    several_models: bool  # whether replicas may have different models loaded
    max_models: int | None  # maximum loaded models of a replica
