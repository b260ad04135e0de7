"""Text in, text out: a model, its tokenizer and an engine behind one object."""
