"""One request on its way through the engine: its tokens, how many of them were fed, and what is yet to be told."""

from ..errors import RwkvGpuError
from .request import Request, Said, Update
from .sampling import Sampler


class Running:
    """A request that was taken on, from its first step to its last news."""

    def __init__(self, id: int, request: Request, vocabulary: int, context: int | None) -> None:
        self.id = id
        self.request = request
        self.ids = [int(token) for token in request.ids]  # prompt and answer
        self.prompt = len(self.ids)
        self.sampler = Sampler(request.params, vocabulary)
        self.sampler.accept_all(self.ids)
        room = request.params.max_tokens if context is None else context - self.prompt
        self.most = self.prompt + min(request.params.max_tokens, room)  # tokens it may come to
        self.seat: int | None = None  # where it sits while it runs
        self.fed = 0  # tokens that its pages or its state have seen
        self.reused = 0
        self.reason: str | None = None
        self.error: RwkvGpuError | None = None
        self._news: list[Said] = []

    @property
    def to_feed(self) -> int:
        """Tokens that are known and not fed."""
        return len(self.ids) - self.fed

    @property
    def decodes(self) -> bool:
        """Whether its next row is a token that it said."""
        return self.fed >= self.prompt

    def take(self, said: Said) -> None:
        """A token was chosen: it is said, or ends the request."""
        if said.token in self.request.params.stop_ids:
            self.end("stop")
            return
        self.ids.append(said.token)
        self.sampler.accept(said.token)
        self._news.append(said)
        grammar = self.request.grammar
        if grammar is not None:
            grammar.accept(said.token)
            if grammar.done:
                self.end("stop")
        if len(self.ids) >= self.most:
            self.end("length")

    def end(self, reason: str, error: RwkvGpuError | None = None) -> None:
        """Nothing more is said; the first reason counts."""
        if self.reason is None:
            self.reason, self.error = reason, error

    def update(self) -> Update:
        """What happened since the last one."""
        said, self._news = tuple(self._news), []
        done = min(self.fed, self.prompt)
        return Update(self.id, said, done, self.prompt, self.reused, self.reason, self.error)
