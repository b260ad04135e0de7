"""Families with experts that only recombine what others have: the forms of each, by the name of its architecture."""

import math
from collections.abc import Callable
from dataclasses import replace

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form
from .granite import granite_form
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures

PERIOD = 4  # layers from one that sees all to the next


def exaone_moe(source: DenseFile) -> Form:
    """K-EXAONE: only layers with a window turn."""
    windows = source.windows(PERIOD)
    return Form(ropes=source.turning(source.rope("neox"), windows), windows=windows, head_norms="each")


def afmoe(source: DenseFile) -> Form:
    """Trinity: the same with gated attention, norms after each branch and a scaled embedding."""
    return replace(
        exaone_moe(source),
        gated=True,
        after=("post_attention_norm", "post_ffw_norm"),
        embedding_scale=math.sqrt(source.hyper.width),
    )


FORMS: dict[str, tuple[Form | Callable[[DenseFile], Form], ExpertForm]] = {
    "afmoe": (afmoe, ExpertForm(scores="sigmoid", shared=None)),
    "bailingmoe": (Form(), ExpertForm(shared=True)),
    "bailingmoe2": (Form(pairing="neox", head_norms="each"), ExpertForm(scores="sigmoid", shared=True)),
    "deepseek": (Form(), ExpertForm(normalise=False, shared=True)),
    "dots1": (Form(pairing="neox", head_norms="each"), ExpertForm(scores="sigmoid", shared=True)),
    "ernie4_5-moe": (Form(), ExpertForm(normalise=True, shared=None)),
    "exaone-moe": (exaone_moe, ExpertForm(scores="sigmoid", shared=True)),
    "granitemoe": (granite_form, ExpertForm(normalise=True, shared=None)),
    "hy_v3": (Form(pairing="neox", head_norms="each"), ExpertForm(scores="sigmoid", shared=None)),
    "hunyuan-moe": (Form(pairing="neox", head_norms="turned"), ExpertForm(normalise=True, shared=True)),
    "minimax-m2": (Form(pairing="neox", head_norms="whole"), ExpertForm(scores="sigmoid", normalise=True)),
    "olmoe": (Form(pairing="neox", head_norms="whole"), ExpertForm(normalise=False)),
    "qwen2moe": (Form(pairing="neox", biases=True), ExpertForm(normalise=False, shared=True)),
    "qwen3vlmoe": (Form(pairing="neox", head_norms="each"), ExpertForm(normalise=True)),
}


def load(file: GGUFFile) -> MixtureTransformer:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    arch = file.str("general.architecture")
    source = DenseFile(file, arch)
    form, experts = FORMS[arch]
    return build_mixtures(source, form if isinstance(form, Form) else form(source), experts)
