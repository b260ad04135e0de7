"""Records llama.cpp's tokens of texts, with the tokenizers of the files in tests/models/published.py.

pip install '.[peer]' && python -m tests.golden.record_published
"""

import json
import tempfile
from pathlib import Path

from tests.golden.record import HERE
from tests.models.published import file_of, published

FILE = HERE / "published.json"
TEXTS = "hello world", "The  the\n in a, the."


def main() -> None:
    """Writes a line for each reference model: the ids of each text, including added tokens."""
    import llama_cpp

    records = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in published():
            path = Path(folder) / "model.gguf"
            path.write_bytes(file_of(form).built())
            model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            records[form.model] = [model.tokenize(text.encode(), add_bos=True, special=True) for text in TEXTS]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(ids)}" for name, ids in records.items())
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
