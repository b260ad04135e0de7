"""Text in, text out: one object with a model, its tokenizer and an engine."""
