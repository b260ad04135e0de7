"""What the application consists of. Knows no Ray; the command line's table of options fills it in."""

from dataclasses import dataclass
from typing import Protocol

from rwkv_gpu.server.config import ServerConfig
from rwkv_gpu.server.service import Service


class Setup(Protocol):
    """What a server consists of. It goes to the process of each replica."""

    @property
    def config(self) -> ServerConfig:
        """Its settings."""

    def service(self, device: str) -> Service:
        """Its models on a device, not loaded yet."""


@dataclass(frozen=True)
class Settings:
    """The server of each replica, and how many replicas there are."""

    setup: Setup
    device: str  # auto, cpu, or adapters of which each replica takes one
    min_replicas: int
    max_replicas: int
    fronts: int
    resource: str  # auto, GPU, wgpu or none: what Ray counts for each replica
    amount: float  # of it
    cpus: float
    log_format: str
    several_models: bool  # whether replicas may have different models loaded
    max_models: int | None  # that a replica may have loaded
