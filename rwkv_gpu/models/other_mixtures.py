"""Families with experts that only recombine what others have: the forms of each, by the name of its architecture."""

from collections.abc import Callable

from ..gguf.file import GGUFFile
from .dense import DenseFile, Form
from .granite import granite_form
from .mixtures import ExpertForm, MixtureTransformer, build_mixtures

FORMS: dict[str, tuple[Form | Callable[[DenseFile], Form], ExpertForm]] = {
    "bailingmoe2": (Form(pairing="neox", head_norms="each"), ExpertForm(scores="sigmoid", shared=True)),
    "dots1": (Form(pairing="neox", head_norms="each"), ExpertForm(scores="sigmoid", shared=True)),
    "ernie4_5-moe": (Form(), ExpertForm(normalise=True, shared=None)),
    "granitemoe": (granite_form, ExpertForm(normalise=True, shared=None)),
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
