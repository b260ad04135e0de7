"""State space models: Mamba-2's recurrence, Mamba's selective scan, and a norm by groups of columns."""

from .kernel import CLOSE, Hole, Kernel, Needs
from .parts import LANES, PLAIN, SUM

SSD = Kernel(
    "ssm/ssd",
    "ssd",
    (Hole("xbc", ("ssm/xbc/plain", "ssm/xbc/convolved")), SUM, PLAIN),
    core=("lib/softplus",),
    tolerance=CLOSE,
    part_needs={"lib/sum/single_lane": Needs(most_lanes=1)},  # a lane for a row is for devices without subgroups
)
SELECTIVE_SCAN = Kernel("ssm/selective_scan", "selective_scan", (PLAIN,), tolerance=CLOSE)
GROUP_RMS_NORM = Kernel("ssm/group_rms_norm", "group_rms_norm", (LANES,))
