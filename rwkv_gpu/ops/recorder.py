"""Ops to plan steps: each call chooses a shader, its constants and its grid, and runs nothing."""

from .attention import AttentionRecorder
from .experts import ExpertRecorder
from .linear import LinearRecorder
from .recurrent import RecurrentRecorder
from .sampling_recorder import SamplingRecorder


class Recorder(AttentionRecorder, ExpertRecorder, LinearRecorder, RecurrentRecorder, SamplingRecorder):
    """The whole vocabulary, recorded."""
