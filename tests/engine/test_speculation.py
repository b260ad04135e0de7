"""Drafts change no answer: greedy or sampled, alone or in a batch, with grammars and penalties."""

import threading
from collections import Counter
from concurrent.futures import wait
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.host_work import THREADS
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.engine.speculation.acceptance import DraftState
from rwkv_gpu.engine.speculation.costs import StepCosts
from rwkv_gpu.engine.speculation.draft_model import DraftModel, draft_options
from rwkv_gpu.engine.speculation.lookup import NgramIndex, PromptLookup
from rwkv_gpu.engine.speculation.proposer import Proposer
from rwkv_gpu.engine.speculation.speculation import WINDOW, Speculation
from rwkv_gpu.engine.speculation.speculator import Drafted, Speculator
from rwkv_gpu.ops.batch import Batch, Segment
from rwkv_gpu.ops.draw import draw
from tests.engine.test_engine import drive, ids_of, small, tokens

KINDS = ("rwkv7", "llama", "falcon-h1", "gemma3", "qwen35", "mamba2", "deepseek2")
DRAFTS = 5


class Known(Proposer):
    """Drafts the known tokens, with errors at random positions."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], mistakes: float) -> None:
        self.answers, self.mistakes = answers, mistakes
        self.random = np.random.default_rng(0)
        self.known = {}  # tokens of each answer after the last draft

    def draft(self, wanted):
        drafts = {}
        for sequence, most in wanted:
            done = self.known[sequence] if sequence.unverified else len(sequence.ids) - sequence.prompt
            # Not the last token: if a grammar ends after it, a draft of it does not count as right.
            draft = self.answers[tuple(sequence.ids[: sequence.prompt])][done:-1][:most]
            wrong = self.random.random(len(draft)) < self.mistakes
            self.known[sequence] = done + 1 + int((~wrong).cumprod().sum())
            drafts[sequence] = [abs(token - int(bad)) for token, bad in zip(draft, wrong, strict=True)]
        return drafts


class Even:
    """A grammar of even tokens that ends after `length` of them."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.left, self.words = length, -(-vocabulary // 32)

    @property
    def done(self):
        return not self.left

    def mask(self):
        return np.full(self.words, 0x55555555, np.uint32)

    def accept(self, token):
        assert token % 2 == 0
        assert self.left, "no token after its end"
        self.left -= 1


def answers(
    runner: Runner, asked: list[Request], speculator: Speculator | None = None
) -> tuple[list[list[int]], Engine]:
    engine = Engine(runner, speculator=speculator)
    numbers = [engine.add(request) for request in asked]
    news = drive(engine)
    assert all(news[number][-1].finish_reason in ("length", "stop") for number in numbers), news
    return [tokens(news[number]) for number in numbers], engine


def speculator(*proposers: Proposer, most: int = DRAFTS) -> Speculator:
    return Speculator(most, proposers, always=True)


def asked(vocabulary: int) -> list[Request]:
    """Makes greedy, sampled, truncated, penalised, biased and constrained requests, and one with all of these."""
    how = [
        SamplingParams(temperature=0, max_tokens=21),
        SamplingParams(seed=1, max_tokens=17),
        SamplingParams(seed=2, top_k=20, top_p=0.9, max_tokens=19),
        SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=0.4, max_tokens=20),
        SamplingParams(seed=4, logit_bias={5: 3.0}, dry_multiplier=0.8, max_tokens=15),
        SamplingParams(seed=5, max_tokens=18),
        SamplingParams(seed=6, presence_penalty=0.7, mirostat_tau=3.0, max_tokens=16),
    ]
    grammars = {5: Even(13, vocabulary), 6: Even(30, vocabulary)}
    return [Request(ids_of(3 + 7 * n, n), params, grammars.get(n)) for n, params in enumerate(how)]


@pytest.mark.parametrize("mistakes", [pytest.param(0.0, marks=pytest.mark.long), 0.3])
@pytest.mark.parametrize("name", KINDS)
def test_drafts_change_no_answer(name, mistakes):
    runner = small(f"tiny-{name}.gguf", slots=4, drafts=DRAFTS)
    expected, _ = answers(runner, asked(runner.vocabulary))
    known = {tuple(request.ids): answer for request, answer in zip(asked(0), expected, strict=True)}
    runner = small(f"tiny-{name}.gguf", slots=4, drafts=DRAFTS)
    found, engine = answers(runner, asked(runner.vocabulary), speculator(Known(known, mistakes)))
    assert found == expected
    assert engine.drafted > 40
    assert (engine.accepted == engine.drafted) == (mistakes == 0)
    engine.prefixes.clear()
    assert runner.store.free == small(f"tiny-{name}.gguf", slots=4, drafts=DRAFTS).store.free


@pytest.mark.parametrize("mistakes", [0.0, 1.0])
def test_the_gain_is_the_speed_of_steps_with_drafts_relative_to_steps_without(mistakes):
    """On a simulated clock, a step takes a second, and a tenth more for each further row."""
    request, now = Request(ids_of(9), SamplingParams(temperature=0, max_tokens=150)), [0.0]
    [expected], _ = answers(small("tiny-llama.gguf"), [request])
    runner = small("tiny-llama.gguf", drafts=DRAFTS)
    submit = runner.submit

    def timed(batch, sampling):
        now[0] += 0.9 + 0.1 * batch.rows
        return submit(batch, sampling)

    runner.submit = timed
    speculating = Speculator(DRAFTS, [Known({tuple(request.ids): expected}, mistakes)])
    engine = Engine(runner, speculator=speculating, clock=lambda: now[0])
    number = engine.add(request)
    news = drive(engine)[number]
    assert tokens(news) == expected
    assert news[0].gain is None, "nothing is measured"
    assert news[-1].gain == engine.activity.gain
    if mistakes:
        assert 0.5 < engine.activity.gain < 0.98
        assert engine.drafted < 60, "they are off most of the time"
    else:
        assert 2 < engine.activity.gain <= (1 + DRAFTS) / (1 + 0.1 * DRAFTS)


@pytest.mark.parametrize("right", [True, False])
def test_a_step_counts_its_tokens_as_gain_and_its_rows_as_cost(right):
    request = Request(ids_of(9), SamplingParams(temperature=0, max_tokens=31))
    [expected], _ = answers(small("tiny-llama.gguf"), [request])
    speculating = speculator(Known({tuple(request.ids): expected}, 0.0 if right else 1.0))
    accounted = []
    speculating.gate.verified = lambda tokens, rows, sequences, *_: accounted.append((tokens, rows, sequences))
    answers(small("tiny-llama.gguf", drafts=DRAFTS), [request], speculating)
    full = (1 + DRAFTS if right else 1, 1 + DRAFTS, 1)
    assert accounted[: len(accounted) // 2] == [full] * (len(accounted) // 2)
    assert len(accounted) == (4 if right else 29), "but for the first: the step before it was of a prompt"


class Accounts:
    """Records what a `Speculation` reports to its costs, its gate and its gain."""

    compile_seconds, begin, close = 0.0, None, None

    def __init__(self, on: bool) -> None:
        self.reports: list[tuple] = []
        self.gate = self.gain = self
        self.on, self.now, self.running = on, 0.0, []
        self.speculation = Speculation(self, self, self, lambda: self.now)
        self.speculation._costs = {False: self}

    def __getattr__(self, name: str):
        return lambda *given, **more: self.reports.append(
            (name, *(one for one in given if one is not self), *more.values())
        )

    def draft_step(self, _sequences: int) -> float:
        return 0.25

    def relative(self, *_given: int) -> float:
        return 2.0

    def without(self, _sequences: int) -> float:
        return 1.0

    def after(self, seconds: float, *chunks: tuple[int, int], tokens: int = 0) -> list[tuple]:
        """Ends a step with chunks of these rows and samples. Returns what is reported."""
        self.now += seconds
        self.speculation._generated = tokens
        self.reports = []
        self.speculation.measure([SimpleNamespace(start=5, end=5 + rows, samples=samples) for rows, samples in chunks])
        return self.reports


def test_a_step_with_drafts_is_measured_if_the_one_before_was_of_the_same_kind():
    accounts, step = Accounts(on=True), ((3, 3), (3, 3))
    measured = [("measured", 6, 2.0, False), ("verified", 5, 6, 2, 0), ("add", 2.0, 2.5)]
    assert accounts.after(9, *step, tokens=4) == []
    assert accounts.after(2, *step, tokens=5) == measured
    assert accounts.after(2, (3, 3), tokens=5) == [], "another number of sequences"
    assert accounts.after(2, *step, tokens=5) == []
    assert accounts.after(2, (3, 3), (3, 1), tokens=5) == [], "a prompt"
    assert accounts.after(2, *step, tokens=5) == []
    assert accounts.after(0.5) == [], "the step waits for the host"
    assert accounts.after(1.5, *step, tokens=5) == measured
    accounts.running = [SimpleNamespace(unverified=1, on_host=False, request=SimpleNamespace(grammar=None))]
    assert accounts.after(0.5, *step) == [], "its result comes later"
    assert accounts.after(1.5, *step, tokens=5) == measured


def test_the_time_of_drafts_is_not_that_of_their_step():
    accounts = Accounts(on=True)
    accounts.after(9, (3, 3), tokens=4)
    accounts.speculation._drafted, accounts.speculation._drafting = Drafted(4), 1.5
    assert accounts.after(3, (3, 3), tokens=2)[:2] == [("drafted", 4, 1, 1.5), ("measured", 3, 1.5, False)]
    accounts.speculation._drafted, accounts.speculation._drafting = Drafted(4, read=True), 1.5
    assert accounts.after(3, (3, 3), tokens=2)[:2] == [("read", 0.5, 1), ("measured", 3, 1.5, False)]
    accounts.speculation._drafted, accounts.speculation._drafting = Drafted(0, True, True), 1.5
    assert accounts.after(3, (3, 3), tokens=2) == [("read", 1.5, 1)], "it still reads"


def test_steps_without_drafts_are_measured_by_the_arrival_of_their_tokens():
    accounts = Accounts(on=False)
    accounts.after(1, (1, 1), (1, 1))
    assert accounts.after(1, (1, 1), (1, 1)) == [("undrafted", 0, 2)], "no token has arrived"
    for number in range(WINDOW + 1):  # the tokens of two steps arrive together
        reports = accounts.after(1, (1, 1), (1, 1), tokens=4 * (number % 2 == 0))
        assert len(reports) == (1 if number < WINDOW else 2)
    [(name, sequences, seconds, ahead), (_, tokens_of_last, _)] = reports
    assert (name, sequences, ahead, tokens_of_last) == ("measured", 2, True, 4)
    assert seconds == pytest.approx(1.0, rel=0.05)
    assert len(accounts.after(1, (1, 1), (1, 1), tokens=2)) == 1, "it is measured anew"


def accepted(right: int, drafted: int, drafts: bool = True, **changed) -> tuple[list[tuple], tuple[int, ...], int]:
    """Accepts rows of a sequence of 8 tokens. Returns calls of store and speculator, counts, and how many are fed."""
    calls: list[tuple] = []
    store = SimpleNamespace(
        correct=lambda *given: calls.append(("correct", *given)) or 50,
        truncate=lambda *given: calls.append(("truncate", *given)) or 60,
    )
    speculating = SimpleNamespace(begin=None, close=None, watch=lambda _, running, __: calls.append(("watch", running)))
    slots, drafting = SimpleNamespace(running=[]), DraftState(5, on=changed.pop("on", True)) if drafts else None
    speculation = Speculation(speculating, SimpleNamespace(store=store), slots, lambda: 0.0)
    given = {"slot": 1, "fed": 10, "in_flight": 0, "finish_reason": None, "ids": [0] * 8, **changed}
    sequence = SimpleNamespace(rows_right=right, rows_drafted=drafted, drafting=drafting, **given)
    speculation.accept(sequence)
    assert sequence.rows_right == 0
    return calls, (speculation.drafted, speculation.accepted, speculation._generated), sequence.fed


def test_wrong_drafts_are_removed_from_a_sequence_that_still_has_its_place():
    assert accepted(2, 4) == ([("truncate", 1, 7)], (4, 1, 2), 60)
    assert accepted(2, 4, fed=8) == ([("truncate", 1, 7)], (4, 1, 2), 60)
    assert accepted(2, 4, in_flight=3) == ([("correct", 1, 7, 3)], (4, 1, 2), 50)
    assert accepted(2, 4, in_flight=3, finish_reason="stop") == ([("truncate", 1, 7)], (4, 1, 2), 60)
    assert accepted(5, 4) == ([], (4, 4, 5), 10), "all are right"
    assert accepted(2, 4, slot=-1) == ([], (4, 1, 2), 10), "it lost its slot"
    assert accepted(2, 4, fed=7) == ([], (4, 1, 2), 7), "it lost its slot and has another"
    assert accepted(0, 4) == ([], (0, 0, 0), 10), "its results were dropped"
    assert accepted(2, 4, drafts=False) == ([], (0, 0, 2), 10)
    assert accepted(1, 0) == ([], (0, 0, 1), 10)
    assert accepted(1, 0, on=False) == ([("watch", 1)], (0, 0, 1), 10)
    assert accepted(2, 4, on=False) == ([("truncate", 1, 7)], (4, 1, 2), 60), "they were off since"


@pytest.mark.parametrize(
    ("on", "changed", "calls"),
    [
        (True, {}, ["True", "draw"]), (False, {"on_host": True}, ["False", "draw", "remember"]),
        (True, {"on_host": True}, []), (False, {}, []), (True, {"in_flight": 1}, []),
        (True, {"samples_in_order": False}, []),
        (True, {"request": Request([1], SamplingParams(presence_penalty=1, typical_p=0.5))}, []),
    ],
)  # fmt: skip
def test_rows_that_are_sampled_in_order_are_sampled_on_the_host_while_drafts_are_on(on, changed, calls):
    found: list[str] = []
    runner = SimpleNamespace(remember=lambda *_: found.append("remember"))
    slots = SimpleNamespace(running=[], draw=lambda _: found.append("draw"))
    speculation = Speculation(SimpleNamespace(begin=None, close=None), runner, slots, lambda: 0.0)
    request = Request([1], SamplingParams(presence_penalty=1))
    given = {"on_host": False, "in_flight": 0, "samples_in_order": True, "request": request, **changed}
    drafting = DraftState(5, on=not on)
    sequence = SimpleNamespace(
        drafting=drafting, slot=0, ids=[1], sample_on_host=lambda host: found.append(str(host)), **given
    )
    speculation._turn(sequence, on)
    assert (drafting.on, found) == (on, calls)


def test_sequences_sampled_on_the_host_or_with_a_grammar_have_step_times_of_their_own():
    slots = SimpleNamespace(running=[])
    speculation = Speculation(SimpleNamespace(begin=None, close=None), None, slots, lambda: 0.0)
    found = []
    for on_host, grammar in ((False, None), (True, None), (False, object()), (True, object())):
        slots.running = [SimpleNamespace(on_host=on_host, request=SimpleNamespace(grammar=grammar))]
        found.append(speculation.costs)
    assert found[0] is not found[1]
    assert found[1] is found[2] is found[3]


def test_each_sequence_learns_how_many_of_its_drafted_tokens_were_right():
    speculation = Speculation(SimpleNamespace(begin=None, close=None), None, SimpleNamespace(running=[]), lambda: 0.0)
    drafting = DraftState(5, on=True)
    speculation.accept(SimpleNamespace(rows_right=2, rows_drafted=4, drafting=drafting, slot=-1, ids=[1, 2, 3]))
    assert (drafting.drafted, drafting.accepted) == (speculation.drafted, speculation.accepted) == (4, 1)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_draft_model_makes_no_draft_after_an_id_beyond_its_vocabulary(beyond):
    runner = small("tiny-llama.gguf", rewind=DRAFTS + 1, look_ahead=0)
    sequence = Engine(small("tiny-llama.gguf")).accept(Request(ids_of(5), SamplingParams(max_tokens=8)))
    sequence.ids.append(runner.vocabulary - 1 + beyond)
    found = DraftModel(runner).draft([(sequence, 2)])
    assert list(map(len, found.values())) == ([] if beyond else [2])


def test_closing_a_speculator_closes_its_proposers_and_watched_drafts_are_booked():
    closed, booked = [], []
    first, second = PromptLookup(), Proposer()
    second.close = lambda: closed.append(second)
    watching = Speculator(DRAFTS, [first, second])
    watching.gate.watched = lambda *given: booked.append(given)
    sequence = SimpleNamespace(drafting=None)
    watching.watch(sequence, 3, StepCosts())
    assert booked == [(0.0, 3)]
    watching.close()
    assert closed == [second]


def test_drafts_of_a_sequence_that_has_given_its_slot_back_are_watched():
    """Tokens of in-flight steps arrive later, when no other request may run."""
    watching = Speculator(DRAFTS, [PromptLookup()])
    watching.gate.decide = lambda *_: setattr(watching.gate, "on", False)
    engine = Engine(small("tiny-llama.gguf", drafts=DRAFTS), speculator=watching)
    number = engine.add(Request(ids_of(9), SamplingParams(temperature=0, max_tokens=31)))
    assert len(tokens(drive(engine, 5)[number])) > 1
    [sequence] = engine._slots.running
    engine._slots.wait(engine._slots.preempt(sequence))
    sequence.rows_right = 1
    engine._speculation.accept(sequence)
    assert tokens(drive(engine)[number])


@pytest.mark.parametrize("done", [True, False])
def test_a_sequence_that_loses_its_slot_while_its_draft_is_sampled_keeps_all_tokens(done):
    """The host samples the rows of a draft on a thread, before or after the slot is lost."""
    how = SamplingParams(seed=4, dry_multiplier=0.8, max_tokens=31)
    other = Request(ids_of(5), SamplingParams(seed=2, max_tokens=40))
    expected, _ = answers(small("tiny-llama.gguf"), [Request(ids_of(9), how, Even(31, 288)), other])
    asked = [Request(ids_of(9), how, Even(31, 288)), other]
    known = {tuple(request.ids): answer for request, answer in zip(asked, expected, strict=True)}
    engine = Engine(small("tiny-llama.gguf", drafts=DRAFTS), speculator=speculator(Known(known, 0.2)))
    numbers, found, lost = [engine.add(request) for request in asked], {}, 0
    sequence = engine._slots.sequences[numbers[0]]
    while engine.busy:
        free = threading.Event()
        for _ in range(0 if done else THREADS):
            engine._host_work.executor.submit(free.wait)
        for update in engine.step():
            found.setdefault(update.id, []).extend(one.token for one in update.sampled)
        if sequence.work and sequence._in_work and sequence.slot >= 0:
            wait([sequence.work] if done else [])
            engine._slots.wait(engine._slots.preempt(sequence))
            lost += 1
        free.set()
    assert [found[number] for number in numbers] == expected
    assert lost > 3


def test_steps_while_a_draft_model_reads_are_not_accounted():
    request = Request(ids_of(100), SamplingParams(temperature=0, max_tokens=31))
    speculating = speculator(DraftModel(small("tiny-llama.gguf", rewind=DRAFTS + 1, look_ahead=0)))
    accounted = []
    speculating.gate.verified = lambda tokens, rows, *_: accounted.append(rows)
    _, engine = answers(small("tiny-llama.gguf", drafts=DRAFTS), [request], speculating)
    assert engine.accepted == engine.drafted > 10
    assert len(accounted) >= 3
    assert min(accounted) > 1, "with a draft each"


@pytest.mark.parametrize(("name", "most"), [("rwkv7", 3), ("llama", 3), ("llama", 15), ("falcon-h1", 3), ("olmo2", 3)])
def test_drafts_change_no_answer_on_the_gpu(adapter, name, most):
    """Kernels of several rows round differently, so sampled tokens might differ: these requests are greedy."""
    requests = [Request(ids_of(3 + 7 * n, n), SamplingParams(temperature=0, max_tokens=4 * most)) for n in range(2)]
    runner = small(f"tiny-{name}.gguf", adapter, slots=2, drafts=most)
    expected, _ = answers(small(f"tiny-{name}.gguf"), requests)
    known = {tuple(request.ids): answer for request, answer in zip(requests, expected, strict=True)}
    found, engine = answers(runner, requests, speculator(Known(known, 0.3), most=most))
    assert found == expected
    assert 0 < engine.accepted < engine.drafted
    apart = [plan for (_, _, _, _, shared_pages, *_), plan in runner._plans.items() if shared_pages]
    assert bool(apart) == (not runner.model.states), "rows of transformers attend as in decode"
    for plan in apart:
        written = [dispatch.name.endswith("kv_write") for dispatch in plan.dispatches]
        assert sum(written) == len(runner.model.caches), "after the keys and values of all rows are written"
    runner.close()


def test_rows_as_separate_segments_use_the_same_pages():
    segments = (Segment(0, 3, 1, 62, (7, 9), None, ((128, (4, 5)),)), Segment(3, 1, 0, 5, (2,)))
    together = Batch(np.arange(4, dtype=np.uint32), segments, (0, 1, 2, 3))
    apart = together.split_rows()
    assert apart.single
    assert apart.outputs == together.outputs
    for window in (0, 128):
        assert apart.places(window).tolist() == together.places(window).tolist()
    assert [one.start for one in apart.segments] == [62, 63, 64, 5]
    assert [one.slot for one in apart.segments] == [1, 1, 1, 0]


def test_few_rows_over_a_long_context_are_split_into_runs_as_decode_is(adapter):
    runner, twin, ids = (
        small("tiny-llama.gguf", adapter, context=1024),
        small("tiny-llama.gguf", context=1024),
        ids_of(200),
    )
    for one in (runner, twin):
        prefill(one, ids[:-5], chunk_size=16)
    found, expected = (prefill(one, ids[-5:], start=len(ids) - 5, every=True) for one in (runner, twin))
    plan = runner.plan_for(Batch.of([(0, 0, ids[-5:])]))
    assert sum("split_reduce" in dispatch.name for dispatch in plan.dispatches) == len(runner.model.caches)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)  # float32 summed in another order, over 4 layers
    runner.close()


@pytest.mark.parametrize(
    ("name", "draft"), [("llama", "llama"), ("llama", "rwkv7"), ("rwkv7", "rwkv7"), ("rwkv7", "llama")]
)
def test_a_draft_model_changes_no_answer(name, draft):
    """A model that is its own draft is always right, at any temperature, because both use the same random numbers."""
    plain = [Request(ids_of(40 - 9 * n, n), SamplingParams(temperature=n % 3, seed=n, max_tokens=20)) for n in range(5)]
    expected, _ = answers(small(f"tiny-{name}.gguf"), plain)
    other = small(f"tiny-{draft}.gguf", rewind=DRAFTS + 1, look_ahead=0)
    found, engine = answers(small(f"tiny-{name}.gguf", drafts=DRAFTS), plain, speculator(DraftModel(other)))
    assert found == expected
    if name == draft:
        assert engine.accepted == engine.drafted > 40
    else:
        assert engine.accepted < engine.drafted


def test_a_draft_model_has_the_context_of_the_target_up_to_its_own_trained_length():
    for trained, of_target, context in ((512, 256, 256), (256, 512, 256), (512, 0, 512), (None, 256, None)):
        target = SimpleNamespace(slots=1, context=of_target, kind="f16", drafts=3)
        options = draft_options(SimpleNamespace(context=trained), target)
        assert options["context"] == context
        assert (options["look_ahead"], options["rewind"]) == (3, 4), "a whole draft, and the token before it"


def test_steps_of_a_draft_share_submits(adapter):
    """Each submit leaves the GPU idle for a while, and costs the host more time than a step's inputs."""
    request = Request(ids_of(20), SamplingParams(temperature=0, max_tokens=25))
    target = small("tiny-llama.gguf", drafts=7)
    expected, _ = answers(target, [request])
    options = draft_options(target.model, target.cache_config)
    drafter = small("tiny-llama.gguf", adapter, **options)
    drafter.queue.measured(1e-6)
    drafter.queue.measured = lambda _seconds: None  # steps are short
    pending, submit = [], drafter.submit
    drafter.submit = lambda *step: pending.append(submit(*step)) or pending[-1]
    found, engine = answers(small("tiny-llama.gguf", drafts=7), [request], speculator(DraftModel(drafter), most=7))
    assert found == expected
    assert engine.accepted > 10
    groups = {id(one.group) for one in pending}
    assert len(groups) < 0.7 * len(pending)
    drafter.close()


@pytest.mark.long
def test_sampled_tokens_have_the_distribution_of_the_model():
    """A chi-square test of two tokens over many seeds, of which the first are also sampled with wrong drafts."""
    runner, prompt, drafted, seeds, few = small("tiny-llama.gguf", slots=8, drafts=2), ids_of(9), 200, 50_000, 4

    def likeliest(logits):
        best = np.sort(np.argsort(-logits)[:few])
        p = np.exp(logits[best].astype(np.float64) - logits.max())
        return best, logits[best], dict(zip(best.tolist(), p / p.sum(), strict=True))

    expected, after = {}, {}
    tops, top_logits, chances = likeliest(prefill(runner, prompt)[-1])
    for first, p in chances.items():
        after[first] = likeliest(prefill(runner, [first], start=len(prompt))[-1])
        runner.store.truncate(0, len(prompt))
        expected |= {(first, second): p * q for second, q in after[first][2].items()}
    runner.store.forget(0)

    def drawn(seed):
        first = int(tops[draw(top_logits, tops, 1.0, seed, 0)])
        ids, logits, _ = after[first]
        return first, int(ids[draw(logits, ids, 1.0, seed, 1)])

    random = np.random.default_rng(1)

    def followers(first):
        return [second for one, second in expected if one == first] or [0]

    class Guessing(Known):
        def draft(self, wanted):
            return {sequence: [random.choice(followers(sequence.ids[-1]))] for sequence, _ in wanted}

    params = [SamplingParams(seed=seed, max_tokens=3, top_k=few) for seed in range(drafted)]
    speculating = speculator(Guessing({}, 0), most=1)
    found, engine = answers(runner, [Request(prompt, one) for one in params], speculating)
    assert 0 < engine.accepted < engine.drafted
    pairs = [drawn(seed) for seed in range(seeds)]
    assert pairs[:drafted] == [(first, second) for first, second, _ in found]
    counted = Counter(pairs)
    counts = np.array([counted[pair] for pair in expected])
    assert counts.sum() == seeds
    share = seeds * np.array(list(expected.values()))
    assert ((counts - share) ** 2 / share).sum() < 37.7, "the quantile 0.999 of 15 degrees of freedom"


def test_a_lookup_drafts_the_tokens_after_the_longest_match():
    index = NgramIndex()
    text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 1, 2, 3]
    assert index.find(text, 4) == ([4, 9, 2, 3], 3), "1 2 3 is longer than 2 3"
    assert index.find([*text, 5], 3) == ([6, 7, 1], 3)
    assert index.find([*text, 5, 8], 3) == ([], 0), "5 8 is new"
    assert index.find([*text, 5, 8, 5, 8], 5) == ([5, 8, 5, 8, 5], 2), "a match that reaches the end repeats itself"


def test_a_lookup_is_right_where_a_text_repeats_itself():
    request = Request(ids_of(30), SamplingParams(temperature=0, logit_bias={7: 100.0, 9: 90.0}, max_tokens=60))
    expected, _ = answers(small("tiny-rwkv7.gguf"), [request])
    found, engine = answers(small("tiny-rwkv7.gguf", drafts=DRAFTS), [request], speculator(PromptLookup()))
    assert found == expected
    assert engine.accepted > 30


def test_a_request_may_ask_for_fewer_drafts_or_none():
    request = [Request(ids_of(9), SamplingParams(temperature=0, max_tokens=30, draft_tokens=n)) for n in (0, 1)]
    known = {tuple(ids_of(9)): answers(small("tiny-llama.gguf"), request[:1])[0][0]}
    for one, most in zip(request, (0, 1), strict=True):
        engine = Engine(small("tiny-llama.gguf", drafts=DRAFTS), speculator=speculator(Known(known, 0)))
        engine.add(one)
        widths = []
        accept = engine._speculation.accept
        engine._speculation.accept = lambda sequence, accept=accept, widths=widths: (
            widths.append(sequence.rows_drafted),
            accept(sequence),
        )
        drive(engine)
        assert max(widths) == most


@pytest.mark.parametrize(
    ("unverified", "draft", "fed", "goes"),
    [(2, [], 3, False), (2, [5], 3, True), (2, [5], 1, False), (0, [], 3, True), (0, [], 1, True)],
)
def test_a_step_without_a_draft_or_with_a_prompt_awaits_the_count_of_right_drafts(unverified, draft, fed, goes):
    sequence = SimpleNamespace(drafting=None, unverified=unverified, fed=fed, ids=[1] * 4, draft=[])
    gate = SimpleNamespace(on=True, decide=lambda *_: None)

    def propose(*_):
        sequence.draft = draft
        return Drafted()

    source = SimpleNamespace(gate=gate, propose=propose, begin=None, close=None, pays=max, compile_seconds=0.0)
    runner = SimpleNamespace(chunk_size=8, compile_seconds=0.0)
    speculation = Speculation(source, runner, SimpleNamespace(running=()), lambda: 0.0)
    assert speculation.propose([sequence], wanted=True) is goes
    for gate.on, wanted in ((True, False), (False, True)):
        speculation.propose([sequence], wanted=wanted)
        assert not sequence.draft, "it drafts if drafts are wanted and pay"
