"""Dense families that only recombine what others have: the form of each, by the name of its architecture."""

from collections.abc import Callable
from dataclasses import replace

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from .dense import SCALE, DenseFile, Form, build
from .transformer import Transformer

PERIOD = 4  # layers from one that sees all to the next
LAYER_NORMS = Form(pairing="neox", layer_norms=True)
PLAIN_GELU = replace(LAYER_NORMS, activation="gelu", glu=False)
PLAIN_RELU2 = replace(LAYER_NORMS, activation="relu2", glu=False)
ONE_NORM = "attn_norm", "attn_norm"  # of both branches of a layer


def command_r(source: DenseFile) -> Form:
    """Command R: both branches of a layer read one norm."""
    _refuse_head_norms(source)
    return Form(
        layer_norms=True,
        parallel=True,
        norms=ONE_NORM,
        logit_scale=source.number("logit_scale", *SCALE, default=1.0),
    )


def cohere2(source: DenseFile) -> Form:
    """Command R7B and Command A: the same, and only layers with a window turn."""
    windows = source.windows(PERIOD)
    return replace(command_r(source), ropes=source.turning(source.rope("normal"), windows), windows=windows)


def falcon(source: DenseFile) -> Form:
    """Falcon: the large model has a norm of its own for attention."""
    own = "blk.0.attn_norm_2.weight" in source.tensors
    return replace(PLAIN_GELU, parallel=True, norms=("attn_norm_2" if own else "attn_norm", "attn_norm"))


def gptneox(source: DenseFile) -> Form:
    """GPT-NeoX, Pythia: the file says whether the branches of a layer read the same."""
    return replace(PLAIN_GELU, parallel=source.file.bool(f"{source.arch}.use_parallel_residual", default=True))


def stablelm(source: DenseFile) -> Form:
    """StableLM: a layer without a norm of its feed-forward has parallel branches."""
    _refuse_head_norms(source)
    two = "blk.0.ffn_norm.weight" in source.tensors
    return LAYER_NORMS if two else replace(LAYER_NORMS, parallel=True, norms=ONE_NORM)


def _refuse_head_norms(source: DenseFile) -> None:
    if "blk.0.attn_q_norm.weight" in source.tensors:
        raise UnsupportedModel(
            f"{source.file.path}: layer norms of heads are not supported; take a smaller model of '{source.arch}'"
        )


FORMS: dict[str, Form | Callable[[DenseFile], Form]] = {
    "arcee": Form(activation="relu2", glu=False),
    "chatglm": Form(),
    "codeshell": PLAIN_GELU,
    "cohere2": cohere2,
    "command-r": command_r,
    "falcon": falcon,
    "gptneox": gptneox,
    "jais2": PLAIN_RELU2,
    "maincoder": Form(head_norms="turned"),
    "nemotron": PLAIN_RELU2,
    "orion": LAYER_NORMS,
    "pangu-embedded": Form(pairing="neox"),
    "phi2": replace(PLAIN_GELU, parallel=True, norms=ONE_NORM),
    "qwen2vl": Form(pairing="neox", biases=True),
    "qwen3vl": Form(pairing="neox", head_norms="each"),
    "stablelm": stablelm,
    "starcoder2": PLAIN_GELU,
    "xverse": Form(),
}


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    arch = file.str("general.architecture")
    source = DenseFile(file, arch)
    form = FORMS[arch]
    return build(source, form if isinstance(form, Form) else form(source))
