"""Downloads of models that clients have requested. Clients that request the same model share one download."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.repository import Progress, RemoteFile

from .errors import ApiError

MOST = 4  # downloads at a time
LOG = logging.getLogger("rwkv_gpu.server")
TICK = 0.2  # seconds between reports of progress


class Stopped(Exception):
    """The download was cancelled, or its last waiting client has left."""


@dataclass(eq=False)
class Pull:
    """One download, on its own thread."""

    name: str  # its name on the hub
    files: dict[str, RemoteFile] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)  # bytes received by file
    reserved: int = 0  # bytes to download when it began
    created: int = field(default_factory=lambda: int(time.time()))
    stopped: bool = False
    followers: int = 0
    kept: bool = False  # whether it continues without followers
    ended: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def left(self) -> int:
        """Bytes that the download still has to write."""
        total = sum(file.nbytes for file in self.files.values())
        return max(0, min(self.reserved, total - sum(self.done.values()) if self.files else self.reserved))

    def stop(self) -> None:
        """Ends the download at its next bytes. Received bytes are kept."""
        self.stopped = True


class Pulls:
    """The downloads of a server into the folder of a hub, whose size is limited."""

    def __init__(self, hub: Hub, max_bytes: int) -> None:
        self.hub = hub
        self._max_bytes = max_bytes
        self._running: dict[str, Pull] = {}
        self._room = threading.Lock()

    @property
    def running(self) -> list[Pull]:
        """The downloads that have not ended."""
        return [*self._running.values()]

    async def start(self, name: str) -> Pull:
        """Starts the download of a model, or finds the one that runs."""
        full = await asyncio.to_thread(self.hub.full_name, name)
        pull = self._running.get(full)
        if pull is not None and not pull.stopped:
            return pull
        if len(self._running) >= MOST:
            raise ApiError(429, f"{MOST} models are being downloaded; ask again later", code="busy", retry_after=5)
        pull = self._running[full] = Pull(full)
        pull.ended.add_done_callback(lambda ended: self._end(pull, ended))
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._download, args=(pull, loop), name="rwkv-gpu-pull", daemon=True).start()
        return pull

    def find(self, name: str) -> Pull | None:
        """The running download of a model."""
        full = self.hub.names.hub_name(name) or name
        return next((pull for key, pull in self._running.items() if key in (name, full, f"hf.co/{name}")), None)

    async def follow(self, pull: Pull) -> AsyncGenerator[None]:
        """Yields while a download runs, and raises its error. Without followers it stops, unless it is `kept`."""
        pull.followers += 1
        try:
            while not pull.ended.done():
                yield
                await asyncio.wait([pull.ended], timeout=TICK)
            pull.ended.result()
            yield
        finally:
            pull.followers -= 1
            if not pull.followers and not pull.kept:
                pull.stop()

    def close(self) -> None:
        """Stops all downloads."""
        for pull in self.running:
            pull.stop()

    def _end(self, pull: Pull, ended: "asyncio.Future[None]") -> None:
        error = ended.exception()
        fields = {"model": pull.name}
        if error is None:
            LOG.info("model downloaded", extra={"fields": fields})
        else:
            LOG.warning("model not downloaded", extra={"fields": {**fields, "error": str(error)}})
        if self._running.get(pull.name) is pull:
            del self._running[pull.name]

    def _download(self, pull: Pull, loop: asyncio.AbstractEventLoop) -> None:
        """Downloads all files; runs on its own thread."""
        error: BaseException | None = None
        try:
            self.hub.store.pull(
                pull.name,
                self.hub.repository,
                lambda file: self._progress(pull, file),
                room=lambda nbytes: self._reserve(pull, nbytes),
            )
        except Stopped:
            error = ApiError(409, f"the download of {pull.name} was cancelled; what has arrived is kept")
        except BaseException as failed:  # noqa: BLE001  raised for those who follow
            error = failed

        def end() -> None:
            if error is None:
                pull.ended.set_result(None)
            else:
                pull.ended.set_exception(error)

        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:  # the server has ended meanwhile
            return

    def _progress(self, pull: Pull, file: RemoteFile) -> Progress:
        pull.files[file.path] = file

        def progress(done: int, _total: int) -> None:
            if pull.stopped:
                raise Stopped
            pull.done[file.path] = done

        progress(0, file.nbytes)
        return progress

    def _reserve(self, pull: Pull, nbytes: int) -> None:
        """Refuses a model for which the folder has no room within its limit."""
        if pull.stopped:
            raise Stopped
        with self._room:
            others = sum(other.left for other in self.running if other is not pull)
            used = self.hub.store.nbytes
            if used + others + nbytes > self._max_bytes:
                raise BadInput(
                    f"{pull.name} needs {nbytes / 1e9:.1f} GB, and the folder of models may have "
                    f"{max(0, self._max_bytes - used - others) / 1e9:.1f} GB more; delete a model, "
                    "or start the server with a larger --max-disk"
                )
            pull.reserved = nbytes
