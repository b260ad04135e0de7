"""Slots as in llama-server: each remembers the sequence of its last request, whose state can be saved and restored."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from rwkv_gpu.engine.cache.prefix_index import PLAIN, Salt
from rwkv_gpu.errors import BadFile, BadInput, RwkvGpuError
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.replies import Prepared
from rwkv_gpu.llm.saved_slots import SavedSlots

from .answers import Answers
from .call import Call, Json
from .errors import ApiError, shown

NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f:*?\"<>|]{1,255}(?<![ .])")  # a valid file name on any system
T = TypeVar("T")


@dataclass
class Slot:
    """The last sequence of a slot."""

    ids: Sequence[int] = ()
    salt: Salt = PLAIN
    users: int = 0  # running requests
    used: float = 0.0  # end of the last request


@dataclass
class Slots:
    """The slots of a model. A request without `id_slot` gets the idle slot that was unused longest."""

    each: list[Slot] = field(default_factory=list)

    @classmethod
    def of(cls, count: int) -> "Slots":
        """Slots of a model that runs `count` sequences."""
        return cls([Slot() for _ in range(count)])

    def take(self, wanted: int | None) -> int:
        """The number of a slot for a request. As in llama-server, numbers wrap around."""
        if wanted is not None:
            return wanted % len(self.each)
        return min(range(len(self.each)), key=lambda n: (self.each[n].users, self.each[n].used, n))

    def occupy(self, call: Call, number: int, prepared: Prepared, answers: Answers) -> None:
        """Gives a slot to a request until its call ends."""
        slot = self.each[number]
        slot.users += 1

        def left() -> None:
            request, _ = prepared.requests[0]
            slot.users, slot.used = slot.users - 1, time.monotonic()
            done = answers.completions
            slot.ids = [*request.ids, *(done[0].tokens if done else ())]
            slot.salt = request.salt

        call.at_end.append(left)


def wanted_slot(body: Json) -> int | None:
    """The field `id_slot`; None and -1 leave the choice to the server."""
    wanted = body.get("id_slot")
    if wanted is None or wanted == -1:
        return None
    if type(wanted) is not int or not 0 <= wanted < 1 << 31:
        raise ApiError(400, f"id_slot is {shown(wanted)}; it must be the number of a slot, or -1", param="id_slot")
    return wanted


def file_name(body: Json) -> str:
    """The field `filename`, under which a slot is saved."""
    name = body.get("filename")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ApiError(400, f"filename is {shown(name)}; it must be a file name without a folder", param="filename")
    return name


def act(saved: SavedSlots, llm: LLM, slot: Slot, action: str, name: str, salt: Salt) -> Json:
    """Saves, restores or erases a slot, on a thread. Returns the counts that llama-server reports."""
    began = time.monotonic()
    if action == "erase":
        count = len(slot.ids)
        _checked(partial(saved.erase, llm, slot.ids, slot.salt))
        slot.ids = ()
        return {"n_erased": count}
    if action == "save":
        done = _checked(partial(saved.save, llm, name, slot.ids, slot.salt))
        counts = {"n_saved": done.tokens, "n_written": done.nbytes}
    else:
        ids, done = _checked(partial(saved.restore, llm, name, salt))
        slot.ids, slot.salt = ids, salt
        counts = {"n_restored": done.tokens, "n_read": done.nbytes}
    return {"filename": name, **counts, "timings": {f"{action}_ms": round(1000 * (time.monotonic() - began), 3)}}


def _checked(work: Callable[[], T]) -> T:
    try:
        return work()
    except (BadFile, BadInput) as error:
        raise ApiError(400, str(error)) from None
    except RwkvGpuError as error:  # no room for the state, or a disk that cannot be written
        raise ApiError(503, str(error), code="slot_failed") from None
