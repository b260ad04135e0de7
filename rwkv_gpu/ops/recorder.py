"""Ops to plan steps: each call chooses a shader, its constants and its grid, and runs nothing."""

from .dense import DenseRecorder


class Recorder(DenseRecorder):
    """The whole vocabulary, recorded."""
