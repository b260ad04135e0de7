"""Writes trained parameters to a GGUF file, in the mix of formats that MIX says.

python -m training.export TRAINED rwkv_gpu/builtin/builtin.gguf
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from rwkv_gpu.gguf.mixes import BY_NAME
from rwkv_gpu.gguf.quantise import quantise_rows

from .vocabulary import END, escaped, load

MIX = (
    (r"token_embd\.weight", "Q5_K"),
    (r"output\.weight", "Q6_K"),
    (r"channel_mix_(key|value)\.weight", "Q4_K"),
    (r"time_mix_(receptance|key|value|output)\.weight", "Q5_K"),
    (r"blk\.0\.time_mix_v[12]\.weight", "Q4_0"),  # no first layer has a value to mix with, but the format wants a place
    (r"time_mix_[wavg][12]\.weight", "Q8_0"),
)
RANKS = {"decay": "w", "iclr": "a", "value_residual_mix": "v", "gate": "g"}


def kind_of(name: str) -> str:
    """The format that a tensor is kept in."""
    return next((kind for pattern, kind in MIX if re.search(pattern + "$", name)), "F32")


def write(path: Path, tensors: Mapping[str, np.ndarray], tokens: list[bytes]) -> None:
    """The file."""
    writer = gguf.GGUFWriter(path, "rwkv7")
    describe(writer, tensors)
    add_vocabulary(writer, tokens)
    for name, values in tensors.items():
        kind = kind_of(name)
        if kind != "F32":
            values = quantise_rows(BY_NAME[kind], values)
        writer.add_tensor(name, values, raw_dtype=None if kind == "F32" else Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, tensors: Mapping[str, np.ndarray]) -> None:
    """What the file says of the model."""
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    inner, width = tensors["blk.0.channel_mix_key.weight"].shape
    writer.add_name("rwkv-gpu built-in")
    writer.add_description(
        "A very small RWKV-7 for simple English conversations, trained by the rwkv-gpu project on generated text."
    )
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_context_length(1024)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(0)
    writer.add_wkv_head_size(64)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_shift_count(2)
    for key, letter in RANKS.items():
        rank = tensors[f"blk.{layers - 1}.time_mix_{letter}1.weight"].shape[0]
        writer.add_uint32(f"rwkv7.attention.{key}_lora_rank", rank)
    writer.add_chat_template("rwkv-world")


def add_vocabulary(writer: gguf.GGUFWriter, tokens: list[bytes]) -> None:
    """Byte strings, matched longest first; the two newlines that end a turn are told as such."""
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(["<s>", *(escaped(token) for token in tokens[1:])])
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(END)
    writer.add_eot_token_id(tokens.index(b"\n\n"))
    writer.add_add_bos_token(False)


def main() -> None:
    source, path = Path(sys.argv[1]), Path(sys.argv[2])
    files = source.parent.glob(source.name + ".*.npz")
    tensors = {name: values for part in files for name, values in np.load(part).items()}
    write(path, tensors, load().tokens)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
