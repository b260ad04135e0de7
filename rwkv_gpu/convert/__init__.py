"""Converts checkpoints of training programs to GGUF."""
