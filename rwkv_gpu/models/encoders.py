"""Encoders, which compute embeddings of texts: the form of each, by the name of its architecture.

Attention is bidirectional if the file states so. BERT and its variants norm the sum after each branch, while decoders
norm the input of a branch. The other models here are decoders without a head.
"""

from collections.abc import Callable
from dataclasses import replace

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Activation
from .dense import AFTER, NEAR_BASE, DenseFile, Form, build
from .dense_families import gemma
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures
from .transformer import Transformer

BERT = Form(
    pairing="neox",
    layer_norms=True,
    norms=(None, None),
    sums=("attn_output_norm", "layer_output_norm"),
    last_norm=None,
    embedding_norm="own",
    token_types=True,
    activation="gelu",
    glu=False,
    head=False,
)
ALIBI = 8.0  # maximum bias of Jina v2, whose files do not specify it
MODERN_PERIOD, GEMMA_PERIOD = 3, 6  # layers from one with full attention to the next
GATES: dict[str, Activation] = {"silu": "silu", "swish": "silu", "swiglu": "silu", "reglu": "relu"}
EXPERTS = ExpertForm(normalise=False, then="gelu", glu=False, by_router=True)


def bert(source: DenseFile) -> Form:
    """BERT, RoBERTa, MiniLM, BGE and others of this format: learned positions instead of RoPE."""
    return replace(BERT, ropes=[None] * source.hyper.layers, learned_positions=True)


def gemma_embedding(source: DenseFile) -> Form:
    """EmbeddingGemma: as Gemma 3, with bidirectional attention; windows are centred on each token."""
    windows = source.windows(GEMMA_PERIOD)
    return replace(
        gemma(source),
        ropes=source.near_unscaled("neox", windows, NEAR_BASE),
        windows=windows,
        head_norms="each",
        after=AFTER,
        causal=False,
        around=True,
        head=False,
        projections=True,
    )


def jina_bert_v2(source: DenseFile) -> Form:
    """Jina v2: ALiBi instead of RoPE. The model for code norms q and k, and norms the sum after attention twice."""
    tensors, up = source.tensors, "blk.0.ffn_up.weight"
    gated = "blk.0.ffn_gate.weight" in tensors or tensors.dimension(up, 0) == 2 * source.hyper.inner[0]
    return replace(
        BERT,
        ropes=[None] * source.hyper.layers,
        alibi=ALIBI,
        glu=gated,
        head_norms="whole" if "blk.0.attn_q_norm.weight" in tensors else "none",
        sum_again="attn_norm_2" if "blk.0.attn_norm_2.weight" in tensors else None,
    )


def modern_bert(source: DenseFile) -> Form:
    """ModernBERT: norms before branches, and full attention in every third layer."""
    windows = source.windows(MODERN_PERIOD, full_first=True)
    if source.causal(Form()):
        windows = [window // 2 + 1 if window else 0 for window in windows]
    return Form(
        ropes=source.near_unscaled("neox", windows, NEAR_BASE),
        windows=windows,
        layer_norms=True,
        embedding_norm="own",
        plain_start=True,
        around=True,
        activation=GATES.get(source.file.str(f"{source.arch}.hidden_activation", default="gelu"), "gelu"),
        head=False,
    )


def t5_encoder(source: DenseFile) -> Form:
    """T5's encoder: scores without a scale gain a bias by relative position. Later versions have gates."""
    gated = "enc.blk.0.ffn_gate.weight" in source.tensors
    return Form(
        blocks="enc.blk",
        attention_output="attn_o",
        ropes=[None] * source.hyper.layers,
        score_scale=1.0,
        biases=True,
        activation="gelu" if gated else "relu",
        glu=gated,
        last_norm="enc.output_norm",
        causal=False,
        head=False,
    )


FORMS: dict[str, Form | Callable[[DenseFile], Form]] = {
    "bert": bert,
    "eurobert": Form(pairing="neox", head=False),
    "gemma-embedding": gemma_embedding,
    "jina-bert-v2": jina_bert_v2,
    "jina-bert-v3": BERT,
    "llama-embed": Form(head=False),
    "modern-bert": modern_bert,
    "neo-bert": Form(last_norm="enc.output_norm", head=False),
    "nomic-bert": replace(BERT, activation="silu", glu=True),
    "nomic-bert-moe": BERT,
    "t5encoder": t5_encoder,
}


def load(file: GGUFFile) -> Transformer | MixtureTransformer:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    arch = file.str("general.architecture")
    source, form = DenseFile(file, arch), FORMS[arch]
    form = form if isinstance(form, Form) else form(source)
    if arch == "nomic-bert-moe":
        return build_mixtures(source, form, EXPERTS)
    return build(source, form)
