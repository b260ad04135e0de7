"""EXAONE 4: branches are normed after their matrices, not before; where there are window layers, only these turn."""

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form, build
from .transformer import Transformer

PERIOD = 4
LARGEST, WINDOW = 64, 4096  # layers of the 32B model, and its window where the file does not say it


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    largest = file.int("exaone4.block_count", low=1, high=1024) == LARGEST
    source = DenseFile(file, "exaone4", window=WINDOW if largest else 0)
    windows = source.windows(PERIOD)
    rope = source.rope("neox")
    turns = source.turning if source.hyper.window else source.ropes
    return build(
        source,
        Form(
            ropes=turns(rope, windows),
            windows=windows,
            head_norms="each",
            norms=(None, None),
            after=("post_attention_norm", "post_ffw_norm"),
        ),
    )
