"""Loads the source of draft tokens for a model: prompt lookup, its own head, or a draft model."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.gpu_runner import GpuRunner
from ..engine.host_runner import HostRunner
from ..engine.runner import Runner
from ..engine.speculation.draft_model import DraftModel, draft_options
from ..engine.speculation.head_drafts import HeadDrafts
from ..engine.speculation.lookup import PromptLookup
from ..engine.speculation.proposer import Proposer
from ..engine.speculation.speculator import Speculator
from ..errors import BadFile, BadInput
from ..gguf.file import GGUFFile
from ..gguf.sample import check_sample
from ..gpu.device import Device
from ..models.heads import Head, predicting
from ..models.layered import Layered
from ..models.registry import Model, load_generator
from ..ops.batch import MOST_KEPT
from .load_options import check

# Maximum tokens of a draft. With the token before them they make 16 rows, which matrix units multiply in the time of 5.
# For models with a state it is 8, as the state after each row is kept. A head is trained to predict one token.
DEFAULT_DRAFT, KEPT_DRAFT, HEAD_DRAFT = 15, 7, 3
PADDING = 512  # ids at the end of a vocabulary that a model of the same family may lack


@dataclass(frozen=True)
class DraftOptions:
    """The options of `load` about drafts."""

    lookup: bool = False
    path: Path | None = None  # path of the draft model
    tokens: int | None = None  # maximum tokens of a draft; None is the model's default
    heads: bool = True  # whether a head of the model drafts, if no draft model is given

    def __post_init__(self) -> None:
        check(draft_tokens=self.tokens)
        if not isinstance(self.lookup, bool):
            raise BadInput(f"lookup is {self.lookup!r}; it must be True or False")

    def head(self, model: Model) -> Head | None:
        """The head of the model that drafts."""
        found = model.file_head if isinstance(model, Layered) else None
        head = None if found is None else found.head
        return head if isinstance(head, Head) and self.heads and self.path is None else None

    def most(self, model: Model) -> int:
        """Maximum tokens of a draft for a model; 0 without drafts."""
        most = 0
        if self.lookup or self.path is not None:
            most = self.tokens or (KEPT_DRAFT if model.states else DEFAULT_DRAFT)
        elif self.head(model) is not None:
            most = self.tokens or HEAD_DRAFT
        if most > MOST_KEPT and model.states:
            raise BadInput(f"draft_tokens is {most}; for models with a recurrent state it must be at most {MOST_KEPT}")
        return most


@dataclass(frozen=True)
class Drafts:
    """The source of drafts for a model."""

    lookup: bool
    file: GGUFFile | None  # file of the draft model
    most: int  # maximum tokens of a draft; 0 without drafts
    head: Head | None = None  # of the model
    fault: str = ""  # what is wrong with the draft model, which is not used then

    def in_use(self, model: Model) -> Model:
        """The model with its head, if that drafts."""
        if self.head is None:
            return model
        assert isinstance(model, Layered), "only these have heads"
        return predicting(model, self.head)

    def without_head(self) -> "Drafts":
        """The other sources of drafts."""
        others = self.lookup or self.file is not None
        return replace(self, head=None, most=self.most if others else 0)

    @cached_property
    def model(self) -> tuple[GGUFFile, Model] | None:
        """The draft model, with its file."""
        return None if self.file is None else (self.file, load_generator(self.file))

    def speculator(self, target: Runner, device: Device | None) -> Speculator | None:
        """The speculator for an engine with this runner, on the same device."""
        proposers: list[Proposer] = [PromptLookup()] if self.lookup else []
        if self.model is not None:
            proposers.append(DraftModel(_draft_runner(*self.model, target, device)))
        elif target.head is not None:
            proposers.append(HeadDrafts(target))
        return Speculator(self.most, proposers) if proposers else None


NO_DRAFTS = Drafts(lookup=False, file=None, most=0)


@contextlib.contextmanager
def drafts_of(options: DraftOptions, file: GGUFFile, model: Model) -> Iterator[Drafts]:
    """Checks the drafts of a model before anything is loaded. The draft model's file is open inside the context.

    A damaged draft model is not used: the model answers without it.
    """
    most = options.most(model)
    with contextlib.ExitStack() as stack:
        opened, fault = None, ""
        if options.path is not None:
            opened, fault = _opened(options.path, file, stack)
        if opened is None:
            options = replace(options, path=None)
            yield Drafts(options.lookup, None, options.most(model), options.head(model), fault)
        else:
            yield Drafts(options.lookup, opened, most)


def _opened(path: Path, target: GGUFFile, stack: contextlib.ExitStack) -> tuple[GGUFFile | None, str]:
    """The file of a draft model, or how it is damaged. Raises an error if it does not fit the model."""
    if not path.is_file():
        raise BadInput(f"{path}: No such file; name a small model with the same vocabulary")
    try:
        opened = stack.enter_context(GGUFFile.open(path))
        check_vocabulary(path, _tokens(opened), _tokens(target))
        check_sample(opened)
        load_generator(opened)
    except BadFile as error:
        return None, str(error)
    return opened, ""


def check_vocabulary(path: Path, own: Sequence[Any], target: Sequence[Any]) -> None:
    """Refuses a draft model with different token ids; either vocabulary may have more at its end."""
    common = min(len(own), len(target))
    differs = next((i for i in range(common) if own[i] != target[i]), None)
    if differs is not None:
        raise BadInput(f"{path}: has another vocabulary than the model (token {differs} differs); take another draft")
    if abs(len(own) - len(target)) > PADDING or not common:
        raise BadInput(
            f"{path}: has a vocabulary of {len(own):,} tokens and the model one of {len(target):,}; take another draft"
        )


def _tokens(file: GGUFFile) -> Sequence[Any]:
    tokens = file.metadata.get("tokenizer.ggml.tokens", ())
    return list(tokens) if isinstance(tokens, list | np.ndarray) else []


def _draft_runner(file: GGUFFile, model: Model, target: Runner, device: Device | None) -> Runner:
    """The runner of the draft model on the target's device, with the same number and length of sequences."""
    options, rows = draft_options(model, target.cache_config), target.chunk_size
    if device is None:
        return HostRunner(file, model, chunk_size=rows, **options)
    return GpuRunner(device, file, model, chunk_size=rows, **options)
