"""Kernels of several residual streams: prediction from one another, correction, and matching of lengths."""

from .kernel import Kernel
from .parts import LANES, PLAIN, PLAIN_RESIDUAL

PREDICT = Kernel("streams/predict", "predict_streams", (PLAIN,))
CORRECT = Kernel("streams/correct", "correct_streams", (PLAIN_RESIDUAL, PLAIN))
MATCH_LENGTH = Kernel("streams/match_length", "match_length", (LANES,))
