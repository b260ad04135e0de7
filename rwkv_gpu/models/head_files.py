"""Draft heads in a separate file: their tensors are joined to the file of the model that they draft for.

The head uses the embedding, last norm and output matrix of the model, even if its own file repeats them.
"""

import re

import numpy as np

from ..errors import BadFile
from ..gguf.file import GGUFFile
from .eagle3 import ARCH as EAGLE3

BLOCK = re.compile(r"blk\.(\d+)\.")
BLOCKS, HEADS = "block_count", "nextn_predict_layers"  # keys of the metadata


def join_mtp(file: GGUFFile, mtp: GGUFFile) -> GGUFFile:
    """The file of a model with the blocks of an MTP file. Raises BadFile if they are of another model."""
    arch = file.str("general.architecture")
    _expect(mtp, "general.architecture", mtp.str("general.architecture"), arch)
    layers = _blocks(file, arch) - file.int(f"{arch}.{HEADS}", low=0, default=0)
    blocks, heads = _blocks(mtp, arch), mtp.int(f"{arch}.{HEADS}", low=1, high=_blocks(mtp, arch))
    _expect(mtp, f"{arch}.{BLOCKS}", blocks - heads, layers)
    of_heads = {name: tensor for name, tensor in mtp.tensors.items() if _block(name) >= layers}
    own = {name: tensor for name, tensor in file.tensors.items() if _block(name) < layers}
    joined = file.joined(mtp, own, of_heads)
    joined.metadata = {
        **{key: value for key, value in mtp.metadata.items() if key.startswith(f"{arch}.")},
        **file.metadata,
        **_by_block(file, mtp, arch, layers),
        f"{arch}.{BLOCKS}": blocks,
        f"{arch}.{HEADS}": heads,
    }
    return joined


def join_head(file: GGUFFile, draft: GGUFFile) -> tuple[GGUFFile, int]:
    """The model's file with a head of another kind as its next block, and the number of that block.

    Raises BadFile if it is for a model of another width.
    """
    arch, kind = file.str("general.architecture"), draft.str("general.architecture")
    layers = _blocks(file, arch) - file.int(f"{arch}.{HEADS}", low=0, default=0)
    inside = "blk.0." if kind == EAGLE3 else ""  # prefix of the only block
    if kind == EAGLE3:
        _expect(draft, f"{kind}.{BLOCKS}", draft.int(f"{kind}.{BLOCKS}"), 1)
        width = draft.int(f"{kind}.target_hidden_size", default=None)
        _expect(draft, f"{kind}.target_hidden_size", width, file.int(f"{arch}.embedding_length"))
    of_head = {f"blk.{layers}.{name.removeprefix(inside)}": tensor for name, tensor in draft.tensors.items()}
    if len(of_head) < len(draft.tensors):
        raise BadFile(f"{draft.path}: has tensors of the same name in and outside of its block; convert it again")
    own = {name: tensor for name, tensor in file.tensors.items() if _block(name) < layers}
    joined = file.joined(draft, own, of_head)
    keys = [key for key in draft.metadata if key.startswith(f"{kind}.") and not key.endswith(HEADS)]
    of_draft = {key: draft.metadata[key] for key in keys}
    joined.metadata = {**file.metadata, **of_draft}
    return joined, layers


def _block(name: str) -> int:
    """The block number of a tensor; -1 if it belongs to no block."""
    found = BLOCK.match(name)
    return -1 if found is None else int(found[1])


def _blocks(file: GGUFFile, arch: str) -> int:
    return file.int(f"{arch}.{BLOCKS}", low=1, high=1024)


def _by_block(file: GGUFFile, mtp: GGUFFile, arch: str, layers: int) -> dict[str, np.ndarray]:
    """The metadata arrays of the MTP file that have an entry for each layer, with entries for its own blocks."""
    found = {}
    for key, value in mtp.metadata.items():
        known = file.metadata.get(key)
        if not key.startswith(f"{arch}.") or not isinstance(value, np.ndarray) or not isinstance(known, np.ndarray):
            continue
        if layers <= len(known) < len(value):
            _expect(mtp, key, value[:layers].tolist(), known[:layers].tolist())
            found[key] = value
    return found


def _expect(file: GGUFFile, key: str, found: object, expected: object) -> None:
    if found != expected:
        raise BadFile(
            f"{file.path}: is for another model (metadata key '{key}': {found}, the model's is {expected}); "
            "take the file of this model"
        )
