"""The compilation target of a graph."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gpu.device import Capabilities
from ..gpu.weights import Shard, Weights
from ..kernels.tuning import Tuning
from .vocabulary import Weight


@dataclass(frozen=True)
class Target:
    """The capabilities of a device, its tuning, and the place of every parameter."""

    can: Capabilities
    tuning: Tuning
    weights: Weights

    def shards(self, weights: Sequence[Weight]) -> list[Shard]:
        """The shards that hold the given parameters, in order."""
        return [shard for weight in weights for shard in self.weights[weight.name].shards]
