"""Dense families of transformers: the `Form` of each, by the name of its architecture."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Xielu
from .dense import AFTER, CLAMP, LIMIT, NEAR_BASE, SCALE, DenseFile, Form, build
from .transformer import Transformer

PERIOD = 4  # every fourth layer has full attention
LAYER_NORMS = Form(pairing="neox", layer_norms=True)
PLAIN_GELU = replace(LAYER_NORMS, activation="gelu", glu=False)
PLAIN_RELU2 = replace(LAYER_NORMS, activation="relu2", glu=False)
BAICHUAN_13B = 40  # layers
CHAMELEON_EPS = 1e-5  # eps of head norms; files do not state it
ONE_NORM = "attn_norm", "attn_norm"  # both branches of a layer read the same norm
NUMBER = -1e3, 1e3  # range of xIELU's numbers
ALIBI, ALIBIS = 8.0, (0.0, 1e3)  # the largest ALiBi slope if files do not state one, and the range in files
FACTOR = 1.0, 1e6  # range of the factor of the RoPE base; published models have 1000
EMBEDDING, DEPTH, BASE_WIDTH = 12.0, 1.4, 256  # scales of the first MiniCPM, and the width by which logits are scaled


def chameleon(source: DenseFile) -> Form:
    """The text part of Chameleon: as Llama, with layer norms of heads.

    In the 34B model, norms follow branches instead of preceding them.
    """
    form = Form(head_norms="layer", head_eps=CHAMELEON_EPS)
    behind = source.file.bool("chameleon.swin_norm", default=False)
    return replace(form, norms=(None, None), after=form.norms) if behind else form


def command_r(source: DenseFile) -> Form:
    """Command R: attention and feed-forward read the same norm. Command R+ has norms of heads."""
    return Form(
        layer_norms=True,
        head_norms=_head_norms(source),
        parallel=True,
        norms=ONE_NORM,
        logit_scale=source.number("logit_scale", *SCALE, default=1.0),
    )


def cohere2(source: DenseFile) -> Form:
    """Command R7B and Command A: as Command R, with RoPE in sliding-window layers only."""
    windows = source.windows(PERIOD)
    return replace(command_r(source), ropes=source.turning(source.rope("normal"), windows), windows=windows)


def apertus(source: DenseFile) -> Form:
    """Apertus: the activation is xIELU without a gate, with parameters for each layer; norms of heads."""
    numbers = (source.floats(f"xielu.{name}", *NUMBER) for name in ("alpha_p", "alpha_n", "beta", "eps"))
    thens = [
        Xielu(positive=_softplus(positive), negative=beta + _softplus(negative), beta=beta, eps=eps)
        for positive, negative, beta, eps in zip(*numbers, strict=True)
    ]
    return Form(pairing="neox", glu=False, thens=thens, head_norms="each", score_scale=source.score_scale())


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x)) if x < 30 else x


def baichuan(source: DenseFile) -> Form:
    """Baichuan: the 13B models use ALiBi instead of RoPE."""
    return refact(source) if source.hyper.layers == BAICHUAN_13B else Form()


def bloom(source: DenseFile) -> Form:
    """BLOOM: ALiBi instead of RoPE, and a norm of the embeddings."""
    return replace(PLAIN_GELU, ropes=_unturned(source), alibi=ALIBI, embedding_norm="own")


def exaone4(source: DenseFile) -> Form:
    """EXAONE 4: norms follow each branch instead of preceding it. If some layers have windows, only they use RoPE.

    The 32B model has windows even if its file does not state one.
    """
    if source.file.int("exaone4.block_count", low=1, high=1024) == 64:
        source.assume_window(4096)
    windows, rope = source.windows(PERIOD), source.rope("neox")
    turns = source.turning if source.hyper.window else source.ropes
    return Form(ropes=turns(rope, windows), windows=windows, head_norms="each", norms=(None, None), after=AFTER)


def falcon(source: DenseFile) -> Form:
    """Falcon: in the large model, attention has its own norm."""
    own = "blk.0.attn_norm_2.weight" in source.tensors
    return replace(PLAIN_GELU, parallel=True, norms=("attn_norm_2" if own else "attn_norm", "attn_norm"))


def gemma(source: DenseFile) -> Form:
    """Gemma: a scaled embedding and a GELU-gated feed-forward. Norm weights in files are stored as 1 + w."""
    return Form(pairing="neox", activation="gelu", embedding_scale=math.sqrt(source.hyper.width))


def gemma2(source: DenseFile) -> Form:
    """Gemma 2: norms before and after each branch, a window in every other layer, capped scores and logits."""
    source.assume_window(4096)
    return replace(
        gemma(source),
        windows=source.windows(2),
        after=AFTER,
        score_scale=_by_width(source, largest=46),
        score_cap=source.cap("attn_logit_softcapping", default=50.0),
        logit_cap=source.cap("final_logit_softcapping", default=30.0),
    )


def gemma3(source: DenseFile) -> Form:
    """Gemma 3: five window layers for each full layer, without RoPE scaling in window layers; norms of heads."""
    windows = source.windows(6)
    return replace(
        gemma(source),
        ropes=source.near_unscaled("neox", windows, NEAR_BASE),
        windows=windows,
        head_norms="each",
        after=AFTER,
        score_scale=_by_width(source, largest=62),
        logit_cap=source.cap("final_logit_softcapping", default=0.0),
    )


def _by_width(source: DenseFile, largest: int) -> float | None:
    """The scale of scores in the 27B model, recognised by its number of layers, `largest`; None for other models."""
    hyper = source.hyper
    return (hyper.width / hyper.heads[0]) ** -0.5 if hyper.layers == largest else None


def glm4(source: DenseFile) -> Form:
    """GLM-4: norms before and after each branch, gate and up in one matrix, RoPE on half of each head.

    Files converted from multimodal models have position sections, at least the first two of which are not empty. The
    heads of such files are permuted to NeoX order.
    """
    key = "glm4.rope.dimension_sections"
    has_sections = key in source.file.metadata and all(source.file.ints(key)[:2])
    return Form(pairing="neox" if has_sections else "normal", after=AFTER)


def gpt2(source: DenseFile) -> Form:
    """GPT-2 and StarCoder 1: learned positions instead of RoPE."""
    return replace(PLAIN_GELU, ropes=_unturned(source), learned_positions=True)


def gptneox(source: DenseFile) -> Form:
    """GPT-NeoX and Pythia: the file states whether attention and feed-forward are parallel."""
    return replace(PLAIN_GELU, parallel=source.file.bool(f"{source.arch}.use_parallel_residual", default=True))


def hunyuan_vl(source: DenseFile) -> Form:
    """The text part of Hunyuan VL: a factor in the file changes the RoPE base."""
    rope, size = source.rope("neox"), source.hyper.head_size
    factor = source.number("rope.scaling.alpha", *FACTOR, default=0.0) or 1.0
    rope = replace(rope, base=rope.base * factor ** (size / (size - 2)))
    return Form(ropes=[rope] * source.hyper.layers, head_norms="turned")


def jais(source: DenseFile) -> Form:
    """Jais 1: as GPT-2 with gated feed-forwards and ALiBi; scores are divided by the head size."""
    return replace(LAYER_NORMS, ropes=_unturned(source), alibi=_alibi(source), score_scale=1 / source.hyper.head_size)


def minicpm(source: DenseFile) -> Form:
    """MiniCPM: scales of embedding, branches and logits, which the first files do not state."""
    hyper = source.hyper
    return Form(
        embedding_scale=source.scale("embedding_scale", EMBEDDING),
        branch_scale=source.number("residual_scale", *SCALE, default=DEPTH / math.sqrt(hyper.layers)),
        logit_scale=1 / source.number("logit_scale", *SCALE, default=hyper.width / BASE_WIDTH),
    )


def mpt(source: DenseFile) -> Form:
    """MPT: ALiBi or learned positions; q, k and v may be clamped."""
    return replace(
        PLAIN_GELU,
        ropes=_unturned(source),
        alibi=_alibi(source),
        clamp=source.number(CLAMP, *LIMIT, default=0.0),
        learned_positions="position_embd.weight" in source.tensors,
    )


def muse_glimmer(source: DenseFile) -> Form:
    """Muse Glimmer: gated attention, RoPE in window layers only, normed embeddings, scaled and capped logits.

    Norms after branches have a fixed eps, which the file does not state.
    """
    windows = source.windows(PERIOD)
    ropes = source.near_unscaled("normal", windows)
    return Form(
        ropes=[rope if window else None for rope, window in zip(ropes, windows, strict=True)],
        windows=windows,
        head_norms="each",
        gated=True,
        after=AFTER,
        after_eps=1e-8,
        embedding_norm="unit",
        logit_scale=source.number("logit_scale", *SCALE, default=1.0),
        logit_cap=source.cap("final_logit_softcapping", default=30.0),
    )


def olmo(source: DenseFile) -> Form:
    """OLMo 1: layer norms without weights; q, k and v may be clamped."""
    return Form(layer_norms=True, norm_weights=False, clamp=source.number(CLAMP, *LIMIT, default=0.0))


def olmo2(source: DenseFile) -> Form:
    """OLMo 2 and OLMo 3: norms follow each branch instead of preceding it; q and k are normed over all heads at once.

    OLMo 3 has window layers, without RoPE scaling.
    """
    windows = source.windows(PERIOD)
    ropes = source.near_unscaled("neox", windows)
    return Form(ropes=ropes, windows=windows, head_norms="whole", norms=(None, None), after=AFTER)


def cogvlm(source: DenseFile) -> Form:
    """The text part of CogVLM: as Llama. The separate matrices for images are skipped."""
    parts = "attn_qkv", "attn_output", "gate", "down", "up"
    source.tensors.skip(*(f"blk.{i}.vis_{part}.weight" for i in range(source.hyper.layers) for part in parts))
    return Form(pairing="neox")


def plamo3(source: DenseFile) -> Form:
    """PLaMo 3: norms before and after each branch, and window layers with another RoPE base."""
    windows = source.windows(8)
    return Form(ropes=source.near_unscaled("neox", windows, NEAR_BASE), windows=windows, head_norms="each", after=AFTER)


def qwen(source: DenseFile) -> Form:
    """The first Qwen: its files state twice the width of the feed-forward."""
    source.hyper = replace(source.hyper, inner=tuple(inner // 2 for inner in source.hyper.inner))
    return Form(pairing="neox")


def refact(source: DenseFile) -> Form:
    """Refact: as Llama, with ALiBi instead of RoPE."""
    return Form(ropes=_unturned(source), alibi=ALIBI)


def smollm3(source: DenseFile) -> Form:
    """SmolLM3: every fourth layer has no RoPE."""
    rope = source.rope("normal")
    return Form([None if i % PERIOD == PERIOD - 1 else rope for i in range(source.hyper.layers)])


def spark2_5(source: DenseFile) -> Form:
    """Spark X2.5: one attention gate per head, and window layers."""
    windows = source.windows(PERIOD)
    return Form(ropes=source.ropes(source.rope("neox"), windows), windows=windows, gated=True, activation="gelu")


def stablelm(source: DenseFile) -> Form:
    """StableLM: a layer without a norm of its feed-forward has parallel branches. The 12B model has norms of heads."""
    form = replace(LAYER_NORMS, head_norms=_head_norms(source))
    two = "blk.0.ffn_norm.weight" in source.tensors
    return form if two else replace(form, parallel=True, norms=ONE_NORM)


def _unturned(source: DenseFile) -> list[None]:
    """No RoPE in any layer."""
    return [None] * source.hyper.layers


def _alibi(source: DenseFile) -> float:
    return source.number("attention.max_alibi_bias", *ALIBIS, default=0.0)


def _head_norms(source: DenseFile) -> Literal["none", "layer"]:
    """The kind of head norms: layer norms if the file has them, as in the largest models of a family."""
    return "layer" if "blk.0.attn_q_norm.weight" in source.tensors else "none"


FORMS: Mapping[str, Form | Callable[[DenseFile], Form]] = {
    "apertus": apertus,
    "arcee": Form(activation="relu2", glu=False),
    "baichuan": baichuan,
    "bitnet": Form(pairing="neox", inside=("attn_sub_norm", "ffn_sub_norm")),
    "bloom": bloom,
    "chameleon": chameleon,
    "chatglm": Form(),
    "codeshell": PLAIN_GELU,
    "cohere2": cohere2,
    "command-r": command_r,
    "cogvlm": cogvlm,
    "ernie4_5": Form(),
    "exaone": Form(pairing="neox"),
    "exaone4": exaone4,
    "falcon": falcon,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "glm4": glm4,
    "gpt2": gpt2,
    "gptneox": gptneox,
    "hunyuan-dense": Form(pairing="neox", head_norms="turned"),
    "hunyuan_vl": hunyuan_vl,
    "internlm2": Form(),
    "jais": jais,
    "jais2": PLAIN_RELU2,
    "maincoder": Form(head_norms="turned"),
    "minicpm": minicpm,
    "mpt": mpt,
    "muse-glimmer": muse_glimmer,
    "nemotron": PLAIN_RELU2,
    "olmo": olmo,
    "olmo2": olmo2,
    "openelm": Form(pairing="neox", head_norms="each"),
    "orion": LAYER_NORMS,
    "paddleocr": Form(pairing="neox"),
    "pangu-embedded": Form(pairing="neox"),
    "phi2": replace(PLAIN_GELU, parallel=True, norms=ONE_NORM),
    "phi3": Form(pairing="neox"),
    "plamo": Form(pairing="neox", parallel=True, norms=ONE_NORM),
    "plamo3": plamo3,
    "qwen": qwen,
    "dream": Form(pairing="neox", diffuses=True),
    "llada": Form(diffuses=True),
    "qwen2": Form(pairing="neox"),
    "qwen2vl": Form(pairing="neox"),
    "qwen3": Form(pairing="neox", head_norms="each"),
    "qwen3vl": Form(pairing="neox", head_norms="each"),
    "refact": refact,
    "seed_oss": Form(pairing="neox", norms=("attn_norm", "post_attention_norm")),
    "smollm3": smollm3,
    "spark2_5": spark2_5,
    "stablelm": stablelm,
    "starcoder": gpt2,
    "starcoder2": PLAIN_GELU,
    "xverse": Form(),
}


def load(file: GGUFFile) -> Transformer:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, file.str("general.architecture"))
    form = FORMS[source.arch]
    return build(source, form if isinstance(form, Form) else form(source))
