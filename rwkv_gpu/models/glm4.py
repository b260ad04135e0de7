"""GLM-4: norms before and after each branch; gate and up are one matrix; half of a head turns.

Files made from models of images and text have sections of positions. Their heads are permuted to halves.
"""

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing
from .dense import Form, load_dense
from .transformer import Transformer


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    pairing: Pairing = "neox" if "glm4.rope.dimension_sections" in file.metadata else "normal"
    return load_dense(file, "glm4", Form(pairing=pairing, after=("post_attention_norm", "post_ffw_norm")))
