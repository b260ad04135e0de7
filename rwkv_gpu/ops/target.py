"""What a graph is compiled for."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gpu.device import Capabilities
from ..gpu.weights import Shard, Weights
from ..kernels.tuning import Tuning
from .vocabulary import Weight


@dataclass(frozen=True)
class Target:
    """What a device can do, how work is spread on it, and where the parameters lie."""

    can: Capabilities
    tuning: Tuning
    weights: Weights

    def shards(self, weights: Sequence[Weight]) -> list[Shard]:
        """The bindings that hold some parameters, in order."""
        return [shard for weight in weights for shard in self.weights[weight.name].shards]
