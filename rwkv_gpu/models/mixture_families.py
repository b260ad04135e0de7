"""Families with experts: the forms of each, by the name of its architecture.

Llama, Granite and Mistral 3 have experts in some files only.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import ClampedSwiglu, KeyIndex, LateTemperature, Temperature
from .dense import AFTER, CLAMP, LIMIT, NEAR_BASE, SCALE, DenseFile, Form
from .dense_families import command_r
from .mixtures import ExpertForm, Forms, MixtureTransformer, build_either, find_head
from .rope import unscaled
from .tensors import LONGEST_CONTEXT
from .transformer import Transformer

PERIOD = 4  # layers from one with full attention to the next
GPT_OSS_SWIGLU = ClampedSwiglu(7.0, alpha=1.702, shift=1.0)


def exaone_moe(source: DenseFile) -> Form:
    """K-EXAONE: RoPE in window layers only."""
    windows = source.windows(PERIOD)
    return Form(ropes=source.turning(source.rope("neox"), windows), windows=windows, head_norms="each")


def afmoe(source: DenseFile) -> Form:
    """Trinity: RoPE in window layers only, gated attention, norms after each branch, a scaled embedding."""
    return replace(
        exaone_moe(source),
        gated=True,
        after=AFTER,
        embedding_scale=math.sqrt(source.hyper.width),
    )


def cohere2moe(source: DenseFile) -> Form:
    """North Mini Code: Command R7B with experts.

    Among the dense first layers, those with full attention have RoPE, too.
    """
    full = source.rope("normal")
    near, windows = source.near(full), source.windows(PERIOD, full_first=True)
    leading = source.file.int(f"{source.arch}.leading_dense_block_count", low=0, high=source.hyper.layers, default=0)
    ropes = [near if window else full if i < leading else None for i, window in enumerate(windows)]
    rms = f"{source.arch}.attention.layer_norm_rms_epsilon" in source.file.metadata
    return replace(command_r(source), ropes=ropes, windows=windows, layer_norms=not rms)


def laguna(source: DenseFile) -> Form:
    """Laguna: attention gates per head or per element; window layers, if there are any, have another RoPE base."""
    windows = source.windows(PERIOD, full_first=True)
    return Form(
        ropes=source.near_unscaled("neox", windows),
        windows=windows,
        head_norms="each",
        gated=True,
        gate_then="softplus",
    )


def dbrx(source: DenseFile) -> Form:
    """DBRX: layer norms without biases; q, k and v are clamped."""
    return Form(
        pairing="neox",
        layer_norms=True,
        norms=("attn_norm", "attn_output_norm"),
        clamp=source.number(CLAMP, *LIMIT, default=0.0),
    )


def arctic(source: DenseFile) -> Form:
    """Arctic: experts read the input of attention; a dense feed-forward of the model's width is added."""
    source.hyper = replace(source.hyper, inner=(source.hyper.width,) * source.hyper.layers)
    return Form(parallel=True, norms=("attn_norm", "ffn_norm_exps"))


def grok(source: DenseFile) -> tuple[Form, ExpertForm]:
    """Grok 1 and 2: norms before and after each branch, and caps. Grok 2 has a dense feed-forward parallel to experts.

    Files that lack the numbers are of Grok 1, whose numbers are the defaults. Two keys that llama.cpp reads but does
    not use are ignored: the cap of routers, and the position from which on queries have a larger scale.
    """
    start = source.file.int(f"{source.arch}.attention.temperature_length", low=0, high=LONGEST_CONTEXT, default=0)
    after = [name for name in ("layer_output_norm", "post_ffw_norm") if f"blk.0.{name}.weight" in source.tensors]
    form = Form(
        pairing="neox",
        activation="gelu",
        after=("attn_output_norm", (*after, "post_ffw_norm")[0]),
        score_scale=source.number("attention.output_scale", *SCALE, default=128**-0.5),
        score_cap=source.cap("attn_logit_softcapping", default=30.0),
        temperature=LateTemperature(start) if start > 1 else None,
        embedding_scale=source.number("embedding_scale", *SCALE, default=6144**0.5),
        logit_scale=source.number("logit_scale", *SCALE, default=3**-0.5),
        logit_cap=source.cap("final_logit_softcapping", default=0.0),
    )
    cap = source.cap("router_logit_softcapping", default=0.0)
    experts = ExpertForm(
        normalise=True, then="gelu", shared=None, shared_suffix="", shared_scale=0.5**0.5, router_cap=cap
    )
    return form, experts


def smallthinker(source: DenseFile) -> Form:
    """SmallThinker: if layers have windows, only these use RoPE."""
    rope, windows = source.rope("neox"), source.windows(PERIOD, full_first=True)
    return Form(ropes=source.turning(rope, windows) if any(windows) else source.ropes(rope, windows), windows=windows)


def mellum(source: DenseFile) -> Form:
    """Mellum 2: RoPE scaling for long contexts applies to full layers only."""
    windows = source.windows(PERIOD)
    return Form(ropes=source.near_unscaled("neox", windows), windows=windows, head_norms="each")


def step35(source: DenseFile) -> tuple[Form, ExpertForm]:
    """Step 3.5 and 3.7 Flash: attention gates per head, other heads in window layers, clamped gates in some layers.

    Full layers use RoPE on half of the dims that the file states.
    """
    rope, windows = source.rope("neox"), source.windows(PERIOD)
    full, near = replace(rope, dims=rope.dims // 2), unscaled(source.near(rope, NEAR_BASE))
    clamp = ClampedSwiglu(0.0, bounds_activation=True)
    form = Form(
        ropes=[near if window else full for window in windows],
        windows=windows,
        head_norms="each",
        gated=True,
        thens=source.clamps("swiglu_clamp_shexp", clamp),
        heads_read="residual",
    )
    clamps = source.clamps("swiglu_clamp_exp", clamp)
    return form, ExpertForm(scores="sigmoid", shared=None, thens=clamps, by_router=True)


def mimo2(source: DenseFile) -> tuple[Form, ExpertForm]:
    """MiMo-V2-Flash and MiMo-V2.5: values are smaller than keys, and layers may have attention sinks."""
    windows = source.windows(PERIOD)
    form = Form(
        ropes=source.near_unscaled("neox", windows, NEAR_BASE),
        windows=windows,
        sinks="some",
        attention_scale=source.number("attention.value_scale", *SCALE, default=0.0) or 1.0,
        heads_read="residual",
    )
    return form, ExpertForm(scores="sigmoid", normalise=True, by_router=True)


def maple(source: DenseFile) -> tuple[Form, ExpertForm]:
    """Maple: RoPE in window layers only, and clamped gates."""
    windows = source.windows(PERIOD)
    form = Form(ropes=source.turning(source.rope("neox"), windows), windows=windows, head_norms="each")
    return form, ExpertForm(normalise=True, thens=source.clamps("swiglu_clamp_exp", ClampedSwiglu(0.0)))


def glm4moe(source: DenseFile) -> Form:
    """GLM-4.5 and related models: RoPE on half of each head. The largest has norms of heads."""
    return Form(
        pairing="neox",
        head_norms="each" if "blk.0.attn_q_norm.weight" in source.tensors else "none",
        norms=("attn_norm", "post_attention_norm"),
        heads_read="normed",
    )


def gpt_oss(source: DenseFile) -> Form:
    """gpt-oss: attention sinks, and windows in every other layer."""
    return Form(pairing="neox", windows=source.windows(2), norms=("attn_norm", "post_attention_norm"), sinks="all")


def minimax_m3(source: DenseFile) -> Form:
    """MiniMax-M3: clamped gates. After the dense layers, an indexer chooses blocks of positions for each KV head."""
    file, layers, at = source.file, source.hyper.layers, f"{source.arch}.attention.indexer"
    heads, rope = file.int(f"{at}.head_count", low=1, high=1 << 12), source.rope("neox")
    for i, kv_heads in enumerate(source.hyper.kv_heads):
        if kv_heads != heads:
            raise source.tensors.bad(
                f"metadata key '{at}.head_count'", str(heads), f"{kv_heads}, as KV heads of layer {i}"
            )
    block = file.int(f"{at}.block_size", low=1, high=1 << 16)
    most = -(-source.hyper.context // block)  # blocks of the whole context
    count = min(most, file.int(f"{at}.top_k", low=1, high=1 << 16))
    recent = file.int(f"{at}.local_blocks", low=0, high=1 << 16)
    index = KeyIndex(heads, rope, count, block=block, by_head=True, recent=min(recent, count))
    dense = file.int(f"{source.arch}.leading_dense_block_count", low=0, high=layers, default=0)
    return Form(
        ropes=[rope] * layers,
        head_norms="each",
        thens=[GPT_OSS_SWIGLU] * layers,
        indexes=[None if i < dense else index for i in range(layers)],
    )


def granite(source: DenseFile) -> Form:
    """Granite, whose files state in the key `finetuned` whether RoPE is used."""
    turns = source.file.bool(f"{source.arch}.rope.scaling.finetuned", default=True)
    return replace(granite_scales(source), ropes=() if turns else [None] * source.hyper.layers)


def granite_scales(source: DenseFile) -> Form:
    """All of Granite: Llama with scales of embedding, scores, branches and logits."""
    return Form(
        score_scale=source.score_scale(),
        embedding_scale=source.scale("embedding_scale"),
        branch_scale=source.scale("residual_scale"),
        logit_scale=1 / source.number("logit_scale", *SCALE, default=1.0),
    )


def granite_swa(source: DenseFile) -> Form:
    """Granite with windows: attention sinks; the file states which layers have a window, and which have no RoPE."""
    rope, turns = source.rope("normal"), source.flags("attention.rope_pattern", default=True)
    return replace(
        granite_scales(source),
        ropes=[rope if turn else None for turn in turns],
        windows=source.windows(PERIOD, full_first=True),
        sinks="all",
    )


def mistral3(source: DenseFile) -> Form:
    """Ministral 3 and Devstral 2: Llama with YaRN; queries beyond the first positions have a larger scale."""
    scale = source.number("attention.temperature_scale", 0.0, 1e2, default=0.0)
    key = "mistral3.rope.scaling.original_context_length"
    period = source.file.int(key, low=1, high=LONGEST_CONTEXT, default=source.hyper.context)
    return Form(temperature=Temperature(scale, period) if scale else None)


Both = tuple[Form | Callable[[DenseFile], Form], ExpertForm]

FORMS: Mapping[str, Both | Callable[[DenseFile], tuple[Form, ExpertForm]]] = {
    "afmoe": (afmoe, ExpertForm(scores="sigmoid", shared=None)),
    "arctic": (arctic, ExpertForm(normalise=True, dense="ffn_norm")),
    "bailingmoe": (Form(), ExpertForm(shared=True)),
    "bailingmoe2": (
        Form(pairing="neox", head_norms="each", heads_read="normed"),
        ExpertForm(scores="sigmoid", shared=True),
    ),
    "cohere2moe": (cohere2moe, ExpertForm(scores="sigmoid", shared=None, shared_scale=0.5)),
    "dbrx": (dbrx, ExpertForm(normalise=True)),
    "deepseek": (Form(), ExpertForm(normalise=False, shared=True)),
    "deepseek2-ocr": (Form(pairing="neox"), ExpertForm(shared=True)),
    "dots1": (Form(pairing="neox", head_norms="each"), ExpertForm(scores="sigmoid", shared=True)),
    "ernie4_5-moe": (Form(), ExpertForm(normalise=True, shared=None)),
    "exaone-moe": (exaone_moe, ExpertForm(scores="sigmoid", shared=True)),
    "glm4moe": (glm4moe, ExpertForm(scores="sigmoid", shared=True)),
    "gpt-oss": (gpt_oss, ExpertForm(scores="late_softmax", normalise=False, then=GPT_OSS_SWIGLU, biases=True)),
    "granite": (granite, ExpertForm(normalise=True, shared=None, optional=True)),
    "granite_swa": (granite_swa, ExpertForm(normalise=True, shared=None, optional=True)),
    "granitemoe": (granite_scales, ExpertForm(normalise=True, shared=None)),
    "grok": grok,
    "grovemoe": (Form(pairing="neox", head_norms="each"), ExpertForm(normalise=True, adjugates=True)),
    "hunyuan-moe": (Form(pairing="neox", head_norms="turned"), ExpertForm(normalise=True, shared=True)),
    "hy_v3": (
        Form(pairing="neox", head_norms="each", heads_read="normed"),
        ExpertForm(scores="sigmoid", shared=None, by_router=True),
    ),
    "laguna": (laguna, ExpertForm(scores="sigmoid", shared=True)),
    "llama": (Form(), ExpertForm(normalise=True, optional=True)),
    "llada-moe": (Form(pairing="neox", head_norms="each", diffuses=True), ExpertForm(normalise=False)),
    "maple": maple,
    "mellum": (mellum, ExpertForm(normalise=True)),
    "mimo2": mimo2,
    "minimax-m2": (Form(pairing="neox", head_norms="whole"), ExpertForm(scores="sigmoid", normalise=True)),
    "minimax-m3": (minimax_m3, ExpertForm(scores="sigmoid", shared=True, then=GPT_OSS_SWIGLU)),
    "mistral3": (mistral3, ExpertForm(normalise=True, optional=True)),
    "olmoe": (Form(pairing="neox", head_norms="whole"), ExpertForm(normalise=False)),
    "phimoe": (Form(pairing="neox"), ExpertForm(normalise=True)),
    "qwen2moe": (Form(pairing="neox"), ExpertForm(normalise=False, shared=True)),
    "qwen3moe": (Form(pairing="neox", head_norms="each"), ExpertForm(normalise=True)),
    "qwen3vlmoe": (Form(pairing="neox", head_norms="each"), ExpertForm(normalise=True)),
    "rnd1": (Form(pairing="neox", head_norms="each", diffuses=True), ExpertForm(normalise=True)),
    "smallthinker": (smallthinker, ExpertForm(normalise=True, then="relu", routed_first=True)),
    "step35": step35,
}


def load(file: GGUFFile) -> Transformer | MixtureTransformer:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    arch = file.str("general.architecture")
    source = DenseFile(file, arch)
    form, experts = forms(source)
    model = build_either(source, form, experts)
    if not form.heads_read:
        return model
    return replace(model, file_head=find_head(file, arch, model.ends, forms))


def forms(source: DenseFile) -> Forms:
    """The forms of a file."""
    found = FORMS[source.arch]
    form, experts = found if isinstance(found, tuple) else found(source)
    return form if isinstance(form, Form) else form(source), experts
