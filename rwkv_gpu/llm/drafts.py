"""Loads the source of draft tokens for a model: prompt lookup, a head in its file or another, or a draft model."""

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
from ..errors import BadFile, BadInput, UnsupportedModel
from ..gguf.file import GGUFFile
from ..gguf.sample import check_sample
from ..gpu.device import Device
from ..models import dflash, eagle3, gemma4_assistant
from ..models.half_files import DRAFT_HEADS, drafts_by_head, refuse_half
from ..models.head_files import join_head, join_mtp
from ..models.heads import DraftHead, Head, predicting
from ..models.layered import Layered
from ..models.registry import Model, load_next_token_model
from ..ops.batch import MAX_KEPT
from .load_options import check

# Maximum tokens of a draft. With the token before them they make 16 rows, for which matrix units take no longer than
# for 5. For models with a state the limit is 8, as the state after each row is kept.
DEFAULT_DRAFT, KEPT_DRAFT = 15, 7
SEVERAL = "heads do not draft over several devices"
PADDING = 512  # maximum ids at the end of a vocabulary that another model of the family may lack


@dataclass(frozen=True)
class DraftOptions:
    """The options of `load` about drafts."""

    lookup: bool = False
    path: Path | None = None  # path of the draft model, or of a head of the model
    tokens: int | None = None  # maximum tokens of a draft; None is the model's default
    heads: bool = True  # whether a head of the model drafts, if no draft model is given

    def __post_init__(self) -> None:
        check(draft_tokens=self.tokens)
        if not isinstance(self.lookup, bool):
            raise BadInput(f"lookup is {self.lookup!r}; it must be True or False")

    def head(self, model: Model) -> DraftHead | None:
        """The head of the model that drafts."""
        return _head_of(model)[0] if self.heads and self.path is None else None

    def most(self, model: Model) -> int:
        """Maximum tokens of a draft for a model; 0 without drafts."""
        most = 0
        if self.lookup or self.path is not None:
            most = self.tokens or (KEPT_DRAFT if model.states else DEFAULT_DRAFT)
        elif (head := self.head(model)) is not None:
            most = self.tokens or head.most
        if most > MAX_KEPT and model.states:
            raise BadInput(f"draft_tokens is {most}; for models with a recurrent state it must be at most {MAX_KEPT}")
        return most

    def most_of(self, head: DraftHead, most: int) -> int:
        """The maximum length of a draft: a lookup may have `most` tokens, but no more than a head drafts as a block."""
        if head.mask is None:
            return most if self.lookup else self.tokens or head.most
        return min(most, head.most)


@dataclass(frozen=True)
class Drafts:
    """The source of drafts for a model."""

    lookup: bool
    file: GGUFFile | None  # file of the draft model
    most: int  # maximum tokens of a draft; 0 without drafts
    head: DraftHead | None = None  # the head of the model, or of another file
    joined: GGUFFile | None = None  # the file of the model with the head of another file
    fault: str = ""  # error of the draft model or of the head's file, which is not used then

    def in_use(self, model: Model) -> Model:
        """The model, with its head if the head drafts."""
        if self.head is None:
            return model
        assert isinstance(model, Layered), "only these have heads"
        return predicting(model, self.head)

    def without_head(self) -> "Drafts":
        """The same drafts without the head: on several devices, a head would read and write on different ones."""
        others, fault = self.lookup or self.file is not None, self.fault if self.joined is None else SEVERAL
        return replace(self, head=None, joined=None, most=self.most if others else 0, fault=fault)

    @cached_property
    def model(self) -> tuple[GGUFFile, Model] | None:
        """The draft model, with its file."""
        return None if self.file is None else (self.file, load_next_token_model(self.file))

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

    A damaged or unsupported draft model, or a head that does not fit, is not used: the model answers without it.
    """
    most = options.most(model)
    with contextlib.ExitStack() as stack:
        found, fault = None, ""
        if options.path is not None:
            try:
                found = _found(options, options.path, file, model, stack)
            except (BadFile, UnsupportedModel) as error:
                fault = str(error)
        if found is not None:
            yield replace(found, most=most if found.head is None else options.most_of(found.head, most))
        else:
            options = replace(options, path=None)
            yield Drafts(options.lookup, None, options.most(model), options.head(model), fault=fault)


def _found(options: DraftOptions, path: Path, target: GGUFFile, model: Model, stack: contextlib.ExitStack) -> Drafts:
    """The drafts that a file provides. Raises an error if it is damaged, not supported, or does not fit the model."""
    if not path.is_file():
        raise BadInput(f"{path}: No such file; name a small model with the same vocabulary")
    opened = stack.enter_context(GGUFFile.open(path))
    if drafts_by_head(opened):
        joined, head = joined_head(opened, target, model)
        return Drafts(options.lookup, None, 0, head, joined)
    check_vocabulary(path, _tokens(opened), _tokens(target))
    check_sample(opened)
    load_next_token_model(opened)
    return Drafts(options.lookup, opened, 0)


def joined_head(opened: GGUFFile, target: GGUFFile, model: Model) -> tuple[GGUFFile, DraftHead]:
    """The file of a model with the head of another file, and this head. Raises an error if it does not fit."""
    try:
        check_sample(opened)
        if opened.str("general.architecture") in DRAFT_HEADS:
            return _joined_file(opened, target, model)
        joined = join_mtp(target, opened)
        _check_tokens(opened, target)
        head, fault = _head_of(load_next_token_model(joined))
    except BadInput as error:
        raise BadFile(str(error)) from None
    if head is None:
        arch = target.str("general.architecture")
        unsupported = f"{opened.path}: draft heads of the architecture '{arch}' are not supported; run without drafts"
        raise BadFile(fault or unsupported)
    return joined, head


def _joined_file(opened: GGUFFile, target: GGUFFile, model: Model) -> tuple[GGUFFile, DraftHead]:
    """The model joined with the file of another kind of head, and the head. Its tokens must be the model's."""
    arch = opened.str("general.architecture")
    if not isinstance(model, Layered):
        refuse_half(opened)
    assert isinstance(model, Layered)
    joined, index = join_head(target, opened)
    _check_tokens(opened, target)
    if arch == eagle3.ARCH:
        return joined, eagle3.read_eagle3(joined, model, index)
    if arch == gemma4_assistant.ARCH:
        return joined, gemma4_assistant.read_assistant(joined, model, index)
    return joined, dflash.read_dflash(joined, model, index, opened.int("tokenizer.ggml.mask_token_id"))


def _check_tokens(opened: GGUFFile, target: GGUFFile) -> None:
    """Refuses a head of another vocabulary, if its file has one."""
    if _tokens(opened):
        check_vocabulary(opened.path, _tokens(opened), _tokens(target))


def _head_of(model: Model) -> tuple[DraftHead | None, str]:
    """The draft head in the file of a model, or the reason why it cannot be used."""
    found = model.file_head if isinstance(model, Layered) else None
    if found is None:
        return None, ""
    return (found.head, "") if isinstance(found.head, Head) else (None, found.fault)


def check_vocabulary(path: Path, own: Sequence[Any], target: Sequence[Any]) -> None:
    """Refuses a draft model with different token ids; either vocabulary may have more at its end."""
    common = min(len(own), len(target))
    differs = next((i for i in range(common) if own[i] != target[i]), None)
    if differs is not None:
        raise BadInput(f"{path}: has another vocabulary than the model (token {differs} differs); use another draft")
    if abs(len(own) - len(target)) > PADDING or not common:
        raise BadInput(
            f"{path}: has a vocabulary of {len(own):,} tokens and the model one of {len(target):,}; use another draft"
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
