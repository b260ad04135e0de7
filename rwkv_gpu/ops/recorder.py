"""Ops to plan steps: each call chooses a shader, its constants and its grid, and runs nothing."""

from .dense import DenseRecorder
from .linear import LinearRecorder
from .recurrent import RecurrentRecorder


class Recorder(DenseRecorder, LinearRecorder, RecurrentRecorder):
    """The whole vocabulary, recorded."""
