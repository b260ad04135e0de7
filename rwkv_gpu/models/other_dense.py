"""Dense families that only recombine what others have: the form of each, by the name of its architecture."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Xielu
from .dense import CLAMP, LIMIT, SCALE, DenseFile, Form, build
from .rope import unscaled
from .transformer import Transformer

PERIOD, PLAMO_PERIOD = 4, 8  # layers from one that sees all to the next
NEAR_BASE = 10000.0  # of window layers of PLaMo 3, where the file does not say it
BAICHUAN_13B = 40  # layers
LAYER_NORMS = Form(pairing="neox", layer_norms=True)
PLAIN_GELU = replace(LAYER_NORMS, activation="gelu", glu=False)
PLAIN_RELU2 = replace(LAYER_NORMS, activation="relu2", glu=False)
ONE_NORM = "attn_norm", "attn_norm"  # of both branches of a layer
NUMBER = -1e3, 1e3  # of xIELU
ALIBI, ALIBIS = 8.0, (0.0, 1e3)  # of models whose files do not say it, and what others may say
FACTOR = 1.0, 1e6  # of a base, to a power near 1; 1000 in models


def command_r(source: DenseFile) -> Form:
    """Command R: both branches of a layer read one norm; Command R+ has norms of heads."""
    return Form(
        layer_norms=True,
        head_norms=_head_norms(source),
        parallel=True,
        norms=ONE_NORM,
        logit_scale=source.number("logit_scale", *SCALE, default=1.0),
    )


def cohere2(source: DenseFile) -> Form:
    """Command R7B and Command A: the same, and only layers with a window turn."""
    windows = source.windows(PERIOD)
    return replace(command_r(source), ropes=source.turning(source.rope("normal"), windows), windows=windows)


def apertus(source: DenseFile) -> Form:
    """Apertus: xIELU in place of a gate, whose numbers differ by layer; norms of heads."""
    numbers = (source.floats(f"xielu.{name}", *NUMBER) for name in ("alpha_p", "alpha_n", "beta", "eps"))
    thens = [
        Xielu(positive=_softplus(positive), negative=beta + _softplus(negative), beta=beta, eps=eps)
        for positive, negative, beta, eps in zip(*numbers, strict=True)
    ]
    return Form(pairing="neox", glu=False, thens=thens, head_norms="each", score_scale=source.score_scale())


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x)) if x < 30 else x


def baichuan(source: DenseFile) -> Form:
    """Baichuan: nothing turns in the 13B models, whose scores lose by distance."""
    return refact(source) if source.hyper.layers == BAICHUAN_13B else Form()


def bloom(source: DenseFile) -> Form:
    """BLOOM: scores lose by distance, and embeddings are normed."""
    return replace(PLAIN_GELU, ropes=_unturned(source), alibi=ALIBI, embedding_norm="own")


def falcon(source: DenseFile) -> Form:
    """Falcon: the large model has a norm of its own for attention."""
    own = "blk.0.attn_norm_2.weight" in source.tensors
    return replace(PLAIN_GELU, parallel=True, norms=("attn_norm_2" if own else "attn_norm", "attn_norm"))


def gpt2(source: DenseFile) -> Form:
    """GPT-2, StarCoder 1: each position has a row, and nothing turns."""
    return replace(PLAIN_GELU, ropes=_unturned(source), learned_positions=True)


def gptneox(source: DenseFile) -> Form:
    """GPT-NeoX, Pythia: the file says whether the branches of a layer read the same."""
    return replace(PLAIN_GELU, parallel=source.file.bool(f"{source.arch}.use_parallel_residual", default=True))


def hunyuan_vl(source: DenseFile) -> Form:
    """The text part of Hunyuan VL: a factor of the file changes the base of what turns."""
    rope, size = source.rope("neox"), source.hyper.head_size
    factor = source.number("rope.scaling.alpha", *FACTOR, default=0.0) or 1.0
    rope = replace(rope, base=rope.base * factor ** (size / (size - 2)))
    return Form(ropes=[rope] * source.hyper.layers, head_norms="turned")


def jais(source: DenseFile) -> Form:
    """Jais 1: as GPT-2 with gates; scores lose by distance, and are divided by the size of heads."""
    return replace(LAYER_NORMS, ropes=_unturned(source), alibi=_alibi(source), score_scale=1 / source.hyper.head_size)


def mpt(source: DenseFile) -> Form:
    """MPT: scores lose by distance, or positions have rows; q, k and v may have a limit."""
    return replace(
        PLAIN_GELU,
        ropes=_unturned(source),
        alibi=_alibi(source),
        clamp=source.number(CLAMP, *LIMIT, default=0.0),
        learned_positions="position_embd.weight" in source.tensors,
    )


def olmo(source: DenseFile) -> Form:
    """OLMo 1: layer norms without weights; q, k and v may have a limit."""
    return Form(layer_norms=True, norm_weights=False, clamp=source.number(CLAMP, *LIMIT, default=0.0))


def plamo3(source: DenseFile) -> Form:
    """PLaMo 3: norms before and after each branch, window layers with a base of their own."""
    full, windows = source.rope("neox"), source.windows(PLAMO_PERIOD)
    near = unscaled(source.near(full, NEAR_BASE))
    return Form(
        ropes=[near if window else full for window in windows],
        windows=windows,
        head_norms="each",
        after=("post_attention_norm", "post_ffw_norm"),
    )


def qwen(source: DenseFile) -> Form:
    """The first Qwen: its files say twice the width of the feed-forward."""
    source.hyper = replace(source.hyper, inner=tuple(inner // 2 for inner in source.hyper.inner))
    return Form(pairing="neox")


def refact(source: DenseFile) -> Form:
    """Refact: as Llama, where scores lose by distance and nothing turns."""
    return Form(ropes=_unturned(source), alibi=ALIBI)


def spark2_5(source: DenseFile) -> Form:
    """Spark X2.5: a gate of each head, and window layers."""
    windows = source.windows(PERIOD)
    return Form(ropes=source.ropes(source.rope("neox"), windows), windows=windows, gated=True, activation="gelu")


def stablelm(source: DenseFile) -> Form:
    """StableLM: a layer without a norm of its feed-forward has parallel branches; the 12B model has norms of heads."""
    form = replace(LAYER_NORMS, head_norms=_head_norms(source))
    two = "blk.0.ffn_norm.weight" in source.tensors
    return form if two else replace(form, parallel=True, norms=ONE_NORM)


def _unturned(source: DenseFile) -> list[None]:
    """Nothing turns in any layer."""
    return [None] * source.hyper.layers


def _alibi(source: DenseFile) -> float:
    return source.number("attention.max_alibi_bias", *ALIBIS, default=0.0)


def _head_norms(source: DenseFile) -> Literal["none", "layer"]:
    """Those of the largest models of a family."""
    return "layer" if "blk.0.attn_q_norm.weight" in source.tensors else "none"


FORMS: dict[str, Form | Callable[[DenseFile], Form]] = {
    "apertus": apertus,
    "arcee": Form(activation="relu2", glu=False),
    "baichuan": baichuan,
    "bloom": bloom,
    "bitnet": Form(pairing="neox", inside=("attn_sub_norm", "ffn_sub_norm")),
    "chatglm": Form(),
    "codeshell": PLAIN_GELU,
    "cohere2": cohere2,
    "command-r": command_r,
    "falcon": falcon,
    "gpt2": gpt2,
    "gptneox": gptneox,
    "hunyuan_vl": hunyuan_vl,
    "jais": jais,
    "jais2": PLAIN_RELU2,
    "maincoder": Form(head_norms="turned"),
    "mpt": mpt,
    "nemotron": PLAIN_RELU2,
    "olmo": olmo,
    "openelm": Form(pairing="neox", head_norms="each"),
    "orion": LAYER_NORMS,
    "paddleocr": Form(pairing="neox"),
    "pangu-embedded": Form(pairing="neox"),
    "phi2": replace(PLAIN_GELU, parallel=True, norms=ONE_NORM),
    "plamo": Form(pairing="neox", parallel=True, norms=ONE_NORM),
    "plamo3": plamo3,
    "qwen": qwen,
    "qwen2vl": Form(pairing="neox"),
    "qwen3vl": Form(pairing="neox", head_norms="each"),
    "refact": refact,
    "spark2_5": spark2_5,
    "stablelm": stablelm,
    "starcoder": gpt2,
    "starcoder2": PLAIN_GELU,
    "xverse": Form(),
}


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    arch = file.str("general.architecture")
    source = DenseFile(file, arch)
    form = FORMS[arch]
    return build(source, form if isinstance(form, Form) else form(source))
