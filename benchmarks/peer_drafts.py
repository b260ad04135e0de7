"""Measures llama.cpp with drafts: greedy answers by its C API, in the way of its speculative example.

`benchmarks.drafts` runs this in any Python that has llama_cpp, so it imports nothing from this project. Drafts have a
fixed length. One batch verifies a draft; rows are sampled until one differs, and wrong tokens are removed from the
memory. A recurrent memory that cannot be cut is copied before and restored; the right tokens are then read again with
the next draft.

Reads questions as JSON lines. Answers each with its tokens, the seconds after its first token, and the numbers of
drafted and right tokens.
"""

import argparse
import ctypes
import json
import random
import sys
import time

from peer_llama import FILL, Peer, begin, lib, prompt, say_loaded

PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what cannot be cut
RUNS = 8, 4, 2  # tokens that a lookup compares, the longest first


class Greedy(Peer):
    """A model with one sequence, which can be extended and cut. Returns the most likely token."""

    def __init__(self, path: str, threads: int, rollback: int) -> None:
        super().__init__(path, threads)
        self.rollback = rollback  # rows that a recurrent state can go back
        self.sampler = lib.llama_sampler_init_greedy()
        self.held = 0  # tokens that the memory has
        self.mark = None  # the length at which the memory was copied, and the copy

    def clear(self, room: int) -> None:
        self.open({"depth": 0, "tokens": room, "batch": 1, "chunk": FILL})
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        self.held, self.mark = 0, None
        has_state = lib.llama_model_is_recurrent(self.model) or lib.llama_model_is_hybrid(self.model)
        self.copies = has_state and not lib.llama_n_rs_seq(self.context)

    def keep(self) -> None:
        """Copies a memory that cannot be cut, before tokens are added that may be wrong."""
        if self.copies:
            size = lib.llama_state_seq_get_size_ext(self.context, 0, PARTIAL)
            copy = (ctypes.c_uint8 * size)()
            lib.llama_state_seq_get_data_ext(self.context, copy, size, 0, PARTIAL)
            self.mark = self.held, copy

    def cut(self, length: int) -> None:
        """Removes tokens beyond a length; restores an earlier copy if necessary."""
        if length >= self.held:
            return
        if self.mark is not None:
            length, copy = self.mark
            lib.llama_state_seq_set_data_ext(self.context, copy, len(copy), 0, PARTIAL)
        if not lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), 0, length, -1):
            raise SystemExit("llama.cpp cannot go back in this model's memory")
        self.held = length

    def feed(self, ids: list, every: bool = False) -> None:
        """Adds tokens. Returns the logits of the last token, or of each token."""
        for step in prompt(ids, 0, self.held, FILL, every):
            self.step(step)
        self.held += len(ids)

    def sample(self, row: int = -1) -> int:
        """Waits for the last step. Returns the likeliest token after one of its rows."""
        return lib.llama_sampler_sample(self.sampler, self.context, row)


class Lookup:
    """The tokens after the latest earlier match of the end of the text."""

    def __init__(self) -> None:
        self.places: dict = {}
        self.seen = 0

    def draft(self, text: list, count: int) -> list:
        for place in range(self.seen, len(text)):
            for run in RUNS:
                self.places[tuple(text[max(0, place - run) : place])] = place
        self.seen = len(text)
        for run in RUNS:
            place = self.places.get(tuple(text[-run:]))
            if place is not None:
                period = len(text) - place  # a run that reaches the end goes on with itself
                return [text[place + i % period] for i in range(count)]
        return []


class Known:
    """Drafts tokens of a known answer, each right with a given probability."""

    def __init__(self, prompt: int, answer: list, right: float) -> None:
        self.prompt, self.answer, self.right = prompt, answer, right
        self.random = random.Random(0)

    def draft(self, text: list, count: int) -> list:
        done = len(text) - self.prompt
        return [token ^ (self.random.random() >= self.right) for token in self.answer[done : done + count]]


class DraftModel:
    """A small draft model. If the answer is known, the model runs, but tokens of the answer replace its own."""

    def __init__(self, model: Greedy, room: int, known: "Known | None") -> None:
        self.model, self.known = model, known
        model.clear(room)

    def draft(self, text: list, count: int) -> list:
        known = self.known and self.known.draft(text, count)
        count = count if known is None else len(known)
        self.model.cut(len(text) - 1)
        self.model.keep()
        feed, tokens = text[self.model.held :], []
        for number in range(count):
            self.model.feed(feed)
            own = self.model.sample()
            tokens.append(own if known is None else known[number])
            feed = tokens[-1:]
        return tokens


class Drafting:
    """A model that answers, and the source of its drafts."""

    def __init__(self, path: str, threads: int, draft: str, rollback: int) -> None:
        self.model = Greedy(path, threads, rollback)
        self.small = Greedy(draft, threads, rollback) if draft else None

    def answer(self, ids: list, count: int, kind: str, length: int, right: "float | None", answer: list) -> dict:
        """Generates `count` tokens after a prompt."""
        room = len(ids) + count + length + 1
        self.model.clear(room)
        known = None if right is None else Known(len(ids), answer, right)
        drafter = {
            "none": lambda: Known(len(ids), [], 1),
            "known": lambda: known,
            "lookup": Lookup,
            "model": lambda: DraftModel(self.small, room, known),
        }[kind]()
        self.model.feed(ids)
        text = [*ids, self.model.sample()]
        drafter.draft(text, 0)  # reads the prompt
        drafted = accepted = 0
        start = time.perf_counter()
        end = len(ids) + count
        while len(text) < end:
            draft = drafter.draft(text, min(length, end - len(text) - 1))
            if draft:
                self.model.keep()
            first = len(text) - 1 - self.model.held  # row; those before it are read again
            self.model.feed([*text[self.model.held :], *draft], every=True)
            tokens = [self.model.sample(first)]
            while len(tokens) <= len(draft) and tokens[-1] == draft[len(tokens) - 1]:
                tokens.append(self.model.sample(first + len(tokens)))
            text += tokens
            drafted, accepted = drafted + len(draft), accepted + len(tokens) - 1
            self.model.cut(len(text) - 1)
        seconds = time.perf_counter() - start
        return {"tokens": text[len(ids) :], "seconds": seconds, "drafted": drafted, "accepted": accepted}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("threads", type=int)
    parser.add_argument("--draft", default="")
    parser.add_argument("--rollback", type=int, default=0)
    asked_for = parser.parse_args()
    begin()
    drafting = Drafting(**vars(asked_for))
    say_loaded()
    for line in sys.stdin:
        print(json.dumps(drafting.answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
