"""Checkpoints of training programs to GGUF."""
