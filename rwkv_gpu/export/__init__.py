"""Exports a model for programs without Python: recorded plans, weights in GPU layout, tokenizer. See docs/export.md."""
