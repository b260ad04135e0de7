"""Passes every parsed request to the engine and returns its answers.

Route modules translate requests; this module limits their costs.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.errors import Closed, DeviceLost
from rwkv_gpu.llm.completion import Event
from rwkv_gpu.llm.images import has_media, text_ids
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.pooling import Doubles, Floats
from rwkv_gpu.llm.replies import Prepared, prompt_of
from rwkv_gpu.llm.saved_slots import SavedSlots
from rwkv_gpu.mcp.client import ToolServers
from rwkv_gpu.text.budget import Exceeded, Limits
from rwkv_gpu.text.interruption import interruptible

from .answers import Answers, Inbox, Updates
from .batch_jobs import Batches
from .call import Call, Json
from .catalogue import Catalogue, ServedModel
from .config import ServerConfig
from .errors import RETRY_AFTER, ApiError
from .keys import salt_of
from .media_urls import MediaUrls
from .metrics import Metrics
from .pdf_reader import PdfReader
from .pulls import Pulls
from .queue import Queue, Ticket
from .slots import Slots, wanted_slot
from .stored_files import StoredFiles
from .stored_responses import StoredResponses
from .streams import Streams

T = TypeVar("T")
THREADS = 4  # threads for rendering, tokenising and compiling
MEDIA_THREADS = 2  # threads for requests with images and sounds, which take seconds to decode
HANDOVER = 0.003  # maximum seconds that the event loop waits to fill a step
SHORT = 2048  # bytes of a body that is prepared in the event loop, within 1 ms
QUICK = Limits(value=1 << 14, work=1 << 20, seconds=0.002)  # limits for rendering its template there
LONG = 2048  # prompts with at least this many tokens are checked on a thread


@dataclass
class Running:
    """A request whose answers are being generated. It ends together with its call."""

    service: "Service"
    call: Call
    model: ServedModel
    llm: LLM
    prepared: Prepared
    answers: Answers
    generated: int = 0  # events so far
    last: float = 0.0  # time of the last event
    slot: int = 0  # number of its slot

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Updates:
        """Returns all events of the answers that have arrived."""
        try:
            updates = await self.answers.next()
        except (DeviceLost, Closed):
            self.service.lost(self.model, self.llm)
            raise
        if not updates:
            raise StopAsyncIteration
        count = 0
        for _, one in updates:
            count += type(one) is Event
        if count:
            self._count(count)
        return updates

    def _count(self, events: int) -> None:
        """Counts new events, and the time that the client waited for them."""
        now, metrics = time.monotonic(), self.service.metrics
        if self.last:
            metrics.next_token.add(now - self.last)
        else:
            metrics.first_token.add(now - self.call.began)
        self.last = now
        self.generated += events

    async def wait(self) -> None:
        """Reads all answers to their end."""
        async for _ in self:
            pass

    def close(self) -> None:
        """Cancels running answers, and records the outcome for the log."""
        self.answers.close()
        completions, notes = self.answers.completions, self.call.notes
        if completions:
            notes["completion_tokens"] = sum(len(one.tokens) for one in completions)
            notes["cached_tokens"] = completions[0].stats.reused_tokens
            notes.setdefault("outcome", completions[0].finish_reason)
            tokens, name = self.service.metrics.tokens, self.model.name
            tokens[name, "generated"] += notes["completion_tokens"]
            tokens[name, "prompt"] += self.prepared.prompt_tokens
            tokens[name, "cached"] += notes["cached_tokens"]
            for kind in ("drafted", "accepted"):
                tokens[name, kind] += sum(getattr(one.stats, f"{kind}_tokens") for one in completions)
            self.service.metrics.ended(name, completions)
        self.service.running.pop(self.call, None)


def timed(work: Generator[None, None, T], spent: list[float]) -> Generator[None, None, T]:
    """Runs work in the same pieces, and adds the seconds of each."""
    while True:
        began = time.monotonic()
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            spent.append(time.monotonic() - began)
        yield


class Service:
    """Shared by all routes: the settings, the models, and `begin`. All methods run in one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        catalogue: Catalogue,
        pulls: Pulls | None = None,
        tools: ToolServers | None = None,
    ) -> None:
        self.config = config
        self.catalogue = catalogue
        self.pulls = pulls  # downloads of models, if admins may start them
        self.tools = tools  # tools of MCP servers, for the page
        self.tool_calls = 0  # number of running calls
        self.log = logging.getLogger("rwkv_gpu.server")
        self.draining = False
        self._threads = ThreadPoolExecutor(THREADS, "rwkv-gpu-request")
        self._media_threads = ThreadPoolExecutor(MEDIA_THREADS, "rwkv-gpu-media")
        self._inbox: Inbox | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[ServedModel, Queue] = {}
        self.streams = Streams()
        self.responses = StoredResponses()
        path = config.slot_save_path
        self.saved_slots = None if path is None else SavedSlots(path, config.max_disk)
        self._slots: dict[ServedModel, Slots] = {}
        self.media_urls = MediaUrls(config.allow_media_urls)
        self.pdfs = PdfReader()
        self.files = StoredFiles()
        self.batches = Batches(self.files, config.sequences)
        self.metrics = Metrics(self._gauges)
        self.running: dict[Call, Running] = {}  # requests that hold engine slots
        self._calls: set[Call] = set()  # requests being answered
        self._begun: dict[LLM, int] = {}  # prompt tokens given to each engine since it was last woken
        self._fresh = False  # whether tokens were given in this pass of the loop

    async def begin(
        self, call: Call, model: str | None, prepare: Callable[..., Prepared], messages: Any = None
    ) -> Running:
        """Starts the answers to a request for a model. They end with the call.

        `prepare` checks and tokenises. It gets the model and options, and passes the options to
        `llm.prepare_chat_completion` or `llm.prepare_completion`. With `messages`, the options may contain the messages
        with fetched images.
        """
        ticket = self._ticket(call, model)
        served, llm = await self.use(call, model)
        prepared = await self._prepared(call, partial(prepare, llm, **await self._more(call, llm, messages)))
        await self._turn(call, ticket, llm, prepared.prompts, len(prepared.requests))
        if prepared.scoring:
            prepared = prepared.scored([await self._compute(served, llm, pieces) for pieces in prepared.scoring])
        if self._inbox is None:
            self._inbox = Inbox(asyncio.get_running_loop())
        if self.saved_slots is not None:
            prepared = prepared.kept()
        running = Running(self, call, served, llm, prepared, Answers(self._inbox, progress=prepared.progress))
        if prepared.requests:
            running.slot = self.slots(served).take(wanted_slot(call.body))
            self.slots(served).occupy(call, running.slot, prepared, running.answers)
        call.at_end.append(running.close)
        self.running[call] = running
        call.stop = running.answers.close
        try:
            if prepared.prompt_tokens < LONG:
                llm.start(prepared, running.answers.read, wake=False)
                self._wake_soon(llm, prepared.prompt_tokens)
            else:
                await self.work(lambda: llm.start(prepared, running.answers.read))
        except (DeviceLost, Closed):
            self.lost(served, llm)
            raise
        return running

    def _wake_soon(self, llm: LLM, tokens: int) -> None:
        """Wakes an engine: at once if its first step is full, otherwise after all requests that arrived together.

        If woken too early, an idle engine would start with the first request alone, and the others would wait for that
        step.
        """
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._wake)
        self._fresh = True
        self._begun[llm] = self._begun.get(llm, 0) + tokens
        if self._begun[llm] >= llm.info.chunk_size:
            self._begun[llm] = 0
            llm.wake(HANDOVER)

    def _wake(self) -> None:
        """Wakes the engines once the loop has read all sockets without finding a new request."""
        if self._fresh:
            self._fresh = False
            asyncio.get_running_loop().call_soon(self._wake)
            return
        for llm in self._begun:
            llm.wake()
        self._begun.clear()

    def salt(self, call: Call) -> Json:
        """The cache salt of a request, as an option of `prepare`: made from its API key and the salt in its body."""
        keyed = (self.config.api_keys or self.config.admin_keys) and not self.config.share_prefixes
        given = call.body.get("cache_salt") or ""
        if not (keyed or given):
            return {}
        return {"cache_salt": salt_of(call.owner if keyed else b"", given)}

    async def _more(self, call: Call, llm: LLM, messages: Any) -> Json:
        """Further options of `prepare`: the salt, and the messages if their files were read or their images fetched."""
        filled = await self.pdfs.filled(messages)
        if filled is not messages:
            call.body_bytes = self.config.max_body  # prepared on a thread
        fetched = filled if llm.media_input is None else await self.media_urls.fetched(filled)
        return self.salt(call) | ({} if fetched is messages else {"messages": fetched})

    async def count(self, call: Call, model: str | None, asked: Json) -> int:
        """Counts the prompt tokens of a chat completion, also if they do not fit the context."""
        _, llm = await self.use(call, model)
        asked = asked | await self._more(call, llm, asked["messages"])
        messages, think = asked.pop("messages"), asked.pop("think", None)
        _, prompt = await self.work(
            lambda: prompt_of(llm, messages, think, asked, bounded=False), media=has_media(call.body)
        )
        return len(prompt.transcript.ids)

    async def _prepared(self, call: Call, prepare: Callable[..., Prepared]) -> Prepared:
        """Prepares a short request at once, since handing it to a thread would take longer.

        Prepares others on a thread.
        """
        if call.body_bytes <= SHORT:
            with suppress(Exceeded):
                return prepare(limits=QUICK)
        return await self.work(prepare, media=has_media(call.body))

    @property
    def asked(self) -> list[Call]:
        """The calls that have requested answers, oldest first."""
        return sorted((call for call in self._calls if "model" in call.notes), key=lambda call: call.began)

    def _gauges(self) -> Iterable[tuple[str, str, str, float]]:
        for model in self.catalogue.models:
            queue, name = self.queue(model), model.name
            yield "model_loaded", "1 if the model is loaded", name, float(model.llm is not None)
            yield "requests_waiting", "Requests that wait for their turn", name, queue.waiting
            yield "requests_waiting_tokens", "Prompt tokens of waiting requests", name, queue.waiting_tokens
            yield "requests_running", "Answers that are being generated", name, queue.running
            if model.llm is not None:
                now = model.llm.activity
                yield "sequences_running", "Sequences that have a slot of the engine", name, now.running
                yield "prefix_entries", "Prefixes that are stored", name, now.prefixes
                yield "prefix_bytes", "Bytes of those", name, now.prefix_bytes
                yield "cache_free_pages", "Free pages of the KV cache", name, now.free_pages
                yield "cache_free_states", "Free recurrent states", name, now.free_states
                yield "steps", "Steps of the engine since it was loaded", name, now.steps
                yield "drafts_verified", "Drafts that these steps verified", name, now.verified
                gain = math.nan if now.gain is None else now.gain  # until both kinds of steps are measured
                yield "draft_gain", "Speed of steps with drafts relative to steps without", name, gain
                yield "step_sequences", "Sequences in these steps, counted once per step", name, now.chunks

    async def embed(
        self,
        call: Call,
        model: str | None,
        texts: Any,
        form: str = "float",
        dimensions: Any = None,
        *,
        truncate: bool = False,
    ) -> tuple[LLM, list[list[int]], Floats]:
        """Embeds texts. Returns the model, the tokens of the texts, and the vectors."""
        ticket = self._ticket(call, model)
        served, llm = await self.use(call, model)
        ids = await self.work(lambda: llm.prepare_embedding(texts, form, truncate=truncate))
        work = llm.embedding_work(ids, dimensions)
        await self._turn(call, ticket, llm, ids, 1)
        return llm, ids, await self._compute(served, llm, work, ids)

    async def rank(
        self, call: Call, model: str | None, query: Any, documents: Any
    ) -> tuple[Sequence[Sequence[int]], Doubles]:
        """Ranks documents. Returns the tokens of each pair of query and document, and the scores."""
        ticket = self._ticket(call, model)
        served, llm = await self.use(call, model)
        ids = await self.work(lambda: llm.prepare_ranking(query, documents))
        await self._turn(call, ticket, llm, ids, 1)
        return ids, await self._compute(served, llm, llm.ranking_work(ids), ids)

    async def decide(self, call: Call, model: str | None, state: Any, questions: Any) -> tuple[int, dict[str, Any]]:
        """Decides between the options of questions. Returns the number of tokens, and the answers."""
        ticket = self._ticket(call, model)
        served, llm = await self.use(call, model)
        asked = await self.work(lambda: llm.prepare_decisions(state, questions))
        await self._turn(call, ticket, llm, [asked.ids], 1)
        rows = await self._compute(served, llm, llm.decision_work(asked), [asked.ids])
        return len(asked.ids), await self.work(lambda: llm.decided(asked, rows))

    def _ticket(self, call: Call, model: str | None) -> tuple[Queue, Ticket]:
        """Enters the queue of a model; leaves it at the end of the call."""
        queue = self.queue(self.find(call, model))
        ticket = queue.enter(call.background)
        call.at_end.append(lambda: queue.leave(ticket))
        return queue, ticket

    async def _turn(
        self, call: Call, place: tuple[Queue, Ticket], llm: LLM, prompts: Sequence[Sequence[int]], answers: int
    ) -> None:
        """Waits until a request may go to the engine."""
        queue, ticket = place
        tokens = call.notes["prompt_tokens"] = sum(map(len, prompts))
        if self.config.log_prompts:
            call.notes["prompt"] = await self.work(lambda: [llm.detokenize(text_ids(ids)) for ids in prompts])
        began = time.monotonic()
        await queue.wait(ticket, tokens, max(1, answers))
        queued = time.monotonic() - began
        call.notes["queued_seconds"] = round(queued, 4)
        self.metrics.queued.add(queued)

    async def _compute(
        self,
        served: ServedModel,
        llm: LLM,
        pieces: Callable[[Engine], Generator[None, None, T]],
        texts: Sequence[Sequence[int]] = (),
    ) -> T:
        """Runs work on the engine's thread between steps, and counts the texts read; cancelled with the request."""
        spent: list[float] = []
        try:
            found = await asyncio.wrap_future(llm.begin_work(lambda engine: timed(pieces(engine), spent)))
            self.metrics.read(served.name, sum(map(len, texts)), spent)
            return found
        except (DeviceLost, Closed):
            self.lost(served, llm)
            raise

    def find(self, call: Call, model: str | None) -> ServedModel:
        """Finds a model by name; raises during shutdown."""
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=self.config.drain)
        served = self.catalogue.find(model)
        call.notes["model"] = served.name
        return served

    def queue(self, served: ServedModel) -> Queue:
        """The queue of a model. It has more slots than simultaneous answers, so that the engine never idles."""
        if served not in self._queues:
            slots = self.config.sequences + max(1, self.config.sequences // 8)
            self._queues[served] = Queue(slots, self.config.max_queue, self.config.max_queue_tokens)
        return self._queues[served]

    def slots(self, served: ServedModel) -> Slots:
        """The slots of a model."""
        if served not in self._slots:
            self._slots[served] = Slots.of(self.config.sequences)
        return self._slots[served]

    async def use(self, call: Call, model: str | None) -> tuple[ServedModel, LLM]:
        """Finds a model by name and loads it if needed; it stays loaded until the call ends."""
        served = self.find(call, model)
        if served.llm is None and call.query.get("autoload") in ("false", "0"):
            raise ApiError(400, f"the model {served.name} is not loaded", code="model_not_loaded", param="model")
        return served, await self.catalogue.lease(served, call)

    async def work(self, function: Callable[[], T], *, media: bool = False) -> T:
        """Runs long CPU work on a thread, so that other streams continue. Tokenisation ends with the request."""
        threads = self._media_threads if media else self._threads
        over = threading.Event()

        def run() -> T:
            with interruptible(over.is_set):
                return function()

        try:
            return await asyncio.get_running_loop().run_in_executor(threads, run)
        finally:
            over.set()

    def lost(self, model: ServedModel, llm: LLM) -> None:
        """Handles the loss of a model's engine: reloads the model in the background."""
        self.background(self.catalogue.lost(model, llm))

    def background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs work that continues without a connection."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def follow(self, call: Call) -> None:
        """Registers a call to be awaited at shutdown, and to be ended at its time limit."""
        self._calls.add(call)
        seconds = self._seconds(call.body.get("timeout"))
        overdue = ApiError(504, f"the request took more than {seconds:g} seconds", code="timeout")
        timer = asyncio.get_running_loop().call_later(seconds, call.end, overdue)
        call.release_time_limit = timer.cancel
        call.at_end += [timer.cancel, lambda: self._calls.discard(call)]

    def _seconds(self, asked: object) -> float:
        """The time limit of a request: as requested, up to the server's maximum."""
        return float(asked) if isinstance(asked, int | float) and asked < self.config.timeout else self.config.timeout

    async def drained(self, seconds: float) -> None:
        """Waits until all requests have ended, for at most `seconds`."""
        end = asyncio.get_running_loop().time() + seconds
        while self._calls and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)

    @property
    def unfinished(self) -> int:
        """Number of requests that shutdown waits for."""
        return len(self._calls)

    def end_all(self) -> None:
        """Ends running requests: each stream gets an error event."""
        for call in [*self._calls]:
            call.end(ApiError(503, "the server was shut down", code="shutting_down", retry_after=RETRY_AFTER))

    async def close(self) -> None:
        """Stops the threads, and closes all models."""
        self.batches.close()
        if self.pulls is not None:
            self.pulls.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._media_threads.shutdown(wait=False, cancel_futures=True)
        if self.tools is not None:
            await asyncio.to_thread(self.tools.close)
        await self.catalogue.close()
