"""Ops to plan steps: each call chooses a shader, its constants and its grid, and runs nothing."""

from .attention import AttentionRecorder
from .experts import ExpertRecorder
from .linear import LinearRecorder
from .recurrent import RecurrentRecorder


class Recorder(AttentionRecorder, ExpertRecorder, LinearRecorder, RecurrentRecorder):
    """The whole vocabulary, recorded."""
