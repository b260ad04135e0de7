"""The World vocabulary of RWKV models, and the metadata of a GGUF file that has it.

world.txt.xz is rwkv_vocab_v20230424 of the RWKV project (Apache licence 2.0), each token as Python shows its bytes.
"""

import lzma
from importlib.resources import files

from ..errors import BadFile
from ..gguf.header import Value

NORMAL, CONTROL, UNUSED = 1, 3, 5
END_OF_TURN = 261  # "\n\n"
TEMPLATE = "rwkv-world"  # a name that this program and llama.cpp know


def world_tokenizer(size: int, template: str = TEMPLATE) -> dict[str, Value]:
    """The metadata for a model with `size` embeddings."""
    text = lzma.decompress((files(__package__) / "world.txt.xz").read_bytes()).decode()
    tokens = ["<s>", *text.split("\n")]
    if size < len(tokens):
        raise BadFile(f"the model has {size} embeddings, but the World vocabulary has {len(tokens)} tokens")
    padding = range(len(tokens), size)
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{i}]" for i in padding)],
        "tokenizer.ggml.token_type": [CONTROL, *[NORMAL] * (len(tokens) - 1), *[UNUSED] * len(padding)],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": END_OF_TURN,
        "tokenizer.chat_template": template,
    }
