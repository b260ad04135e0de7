"""GLM-4: norms before and after each branch; gate and up are one matrix; half of a head turns.

Files made from models of images and text have sections of positions. Their heads are permuted to halves.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    pairing: Pairing = "neox" if _has_sections(file) else "normal"
    return load_dense(file, "glm4", Form(pairing=pairing, after=("post_attention_norm", "post_ffw_norm")))


def _has_sections(file: GGUFFile) -> bool:
    """Whether there are at least two that are not empty, the first ones."""
    key = "glm4.rope.dimension_sections"
    return key in file.metadata and all(file.ints(key)[:2])
