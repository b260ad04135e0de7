"""A repository on the Hugging Face hub, or on a server with the same routes: lists and downloads its files.

A file is downloaded to its target folder as `.part`. It gets its name only when it is complete and has the right
checksum. An interrupted download continues where it stopped, in the same run or a later one. If several programs
download the same file, one does so and the others wait.
"""

import http.client
import json
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput, FileInUse, RwkvGpuError
from ..gguf.scan import scan
from ..gguf.source import Source
from ..replace_file import put_in_place
from ..writer_lock import WriterLock
from .hub_names import ENDPOINT, is_model
from .transfer import PIECE, Part, RateLimit, Transfer

PATIENCE = 15.0  # seconds without data after which a connection is closed
WAIT = 0.2  # seconds between checks of a download by another program
MAX_LISTED = 64 << 20  # size limit of a file list
MIN_HEADER, MAX_HEADER = 16 << 20, 256 << 20  # bytes that are read to find the table of tensors: first, and at most

Progress = Callable[[int, int], None]  # bytes received, and total


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    nbytes: int
    sha256: str | None  # known for large files only


class Repository:
    """OWNER/NAME at a revision, with the user's access token.

    A file is downloaded over as many `connections`, and at most `rate` bytes per second.
    """

    def __init__(
        self,
        name: str,
        revision: str = "main",
        *,
        endpoint: str = ENDPOINT,
        token: str | None = None,
        connections: int = 1,
        rate: float | None = None,
    ) -> None:
        self.name = name
        self._revision = urllib.parse.quote(revision, safe="")
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._connections, self._rate = connections, rate
        self._open = urllib.request.build_opener(_Redirect).open

    def models(self) -> dict[str, RemoteFile]:
        """GGUF files of language models, by path."""
        return {path: file for path, file in self.files().items() if is_model(path)}

    def files(self) -> dict[str, RemoteFile]:
        """All files, by path."""
        url = f"{self._endpoint}/api/models/{self.name}/tree/{self._revision}?recursive=true"
        try:
            with self._get(url) as answer:
                listed = json.loads(answer.read(MAX_LISTED))
            files = [_file(entry) for entry in listed if entry.get("type", "file") == "file"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failed(error) from None
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise BadInput(
                f"{self._endpoint} returned a file list of {self.name} that is not in the format of the hub"
            ) from None
        return {file.path: file for file in files}

    def download(self, file: RemoteFile, target: Path, progress: Progress) -> None:
        """Downloads a file to `target`; bytes from an earlier attempt are not requested again."""
        part = target.with_name(target.name + ".part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _check_room(file, part)
            with self._turn(file, target, part, progress):
                if _size(target) == file.nbytes:  # meanwhile completed by another program
                    part.unlink(missing_ok=True)
                    return
                begun = _size(part) > 0
                digest = self._fill(file, part, progress)
                if begun and file.sha256 not in (None, digest):  # the file has changed since the part was begun
                    part.unlink()
                    digest = self._fill(file, part, progress)
                if file.sha256 not in (None, digest):
                    part.unlink()
                    raise BadInput(
                        f"{file.path} arrived damaged: its SHA-256 is {digest}, expected {file.sha256}; "
                        "download it again"
                    )
                put_in_place(part, target)
        except OSError as error:
            raise BadInput(f"{part}: cannot be written: {error.strerror}") from None

    def _turn(self, file: RemoteFile, target: Path, part: Path, progress: Progress) -> WriterLock:
        """Locks a file, after another program that is downloading it."""
        while True:
            try:
                return WriterLock(target)
            except FileInUse:
                progress(min(_size(part), file.nbytes), file.nbytes)
                time.sleep(WAIT)

    def _fill(self, file: RemoteFile, path: Path, progress: Progress) -> str:
        """Appends to a part until it is complete; returns its SHA-256.

        Without a checksum it begins again, because the file may have changed since an earlier attempt.
        """
        has_sum = file.sha256 is not None

        def connect(start: int, stop: int | None) -> Any:
            return self._get(self._url(file), start, stop)

        with open(path, "a+b") as out:
            try:
                part = Part(out)
                if part.done > file.nbytes or not has_sum:
                    part.clear()
                several = min(self._connections, -(-(file.nbytes - part.done) // PIECE))
                pace = RateLimit(self._rate)
                transfer = Transfer(
                    connect, file.nbytes, pace, lambda done: progress(done, file.nbytes), several, has_sum
                )
                transfer.fill(part)
                return part.close()
            except (OSError, http.client.HTTPException) as error:
                raise self._failed(error, file.path, path, kept=has_sum) from None

    def _url(self, file: RemoteFile) -> str:
        return f"{self._endpoint}/{self.name}/resolve/{self._revision}/{urllib.parse.quote(file.path)}"

    def _get(self, url: str, start: int = 0, stop: int | None = None) -> Any:
        headers = {"User-Agent": "rwkv-gpu"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        return self._open(urllib.request.Request(url, headers=headers), timeout=PATIENCE)

    def _failed(self, error: Exception, file: str = "", part: Path | None = None, *, kept: bool = False) -> BadInput:
        """Converts the error to one line with the remedy."""
        what = f"cannot download {self.name}{f'/{file}' if file else ''}: "
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code in (401, 403):
                return BadInput(
                    f"{what}access is denied ({error.code}): check the name; for a gated or private model accept its "
                    f"terms at {self._endpoint}/{self.name} and set HF_TOKEN, "
                    "in Python hub=Hub(token=...)"
                )
            if error.code == 404:
                return BadInput(f"{what}not found (404): check the name and the revision")
            return BadInput(f"{what}the server answered {error.code} {error.reason}; try again later")
        cause = getattr(error, "reason", error)
        if isinstance(cause, ConnectionError | socket.gaierror):  # its text begins with the number of the error
            cause = cause.strerror or cause
        reason = " ".join(str(cause).split()) or type(error).__name__
        if part is not None and isinstance(error, OSError) and error.filename is None and error.errno is not None:
            reason = error.strerror or reason
        remedy = "what has arrived is kept, and the same command continues with it"
        if not (kept and part and part.exists()):
            remedy = "check the network connection"
        return BadInput(f"{what}{reason}; {remedy}")


class Headers(Repository):
    """Downloads only what precedes the weights of GGUF files. The rest of a file is a hole, which takes no space."""

    def download(self, file: RemoteFile, target: Path, progress: Progress) -> None:
        size, data = min(MIN_HEADER, file.nbytes), b""
        while not data or (size < min(MAX_HEADER, file.nbytes) and not _has_header(target, size)):
            size = min(4 * size, file.nbytes) if data else size
            try:
                with self._get(self._url(file), 0, size) as answer:
                    data = answer.read(size)
            except (OSError, http.client.HTTPException) as error:
                raise self._failed(error, file.path) from None
            progress(len(data), size)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "wb") as out:
                    out.write(data)
                    out.truncate(file.nbytes)
            except OSError as error:
                raise BadInput(f"{target}: cannot be written: {error.strerror}") from None


def _has_header(path: Path, size: int) -> bool:
    """True if the first bytes of a file have all that precedes its weights."""
    source = Source(path)
    try:
        return all(tensor.offset <= size for tensor in list(scan(source).tensors.values())[:1])
    except RwkvGpuError:
        return False
    finally:
        source.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_room(file: RemoteFile, part: Path) -> None:
    """Refuses a file for which the disk has too little room."""
    need, free = file.nbytes - _size(part), shutil.disk_usage(part.parent).free
    if need > free:
        raise BadInput(
            f"{part.parent} has {free / 1e9:.1f} GB free, and {file.path} needs {need / 1e9:.1f}; "
            "make room, or name another folder"
        )


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects. Sends the token to no other host, and never without encryption."""

    def redirect_request(self, *given: Any, **more: Any) -> urllib.request.Request | None:
        request = super().redirect_request(*given, **more)
        if request is not None and (request.type, request.host) != (given[0].type, given[0].host):
            request.remove_header("Authorization")
        return request


def _file(entry: dict[str, Any]) -> RemoteFile:
    large = entry.get("lfs") or {}
    path, nbytes, sha256 = entry["path"], large.get("size", entry.get("size", 0)), large.get("oid")
    if not isinstance(path, str) or type(nbytes) is not int or nbytes < 0 or not isinstance(sha256, str | None):
        raise TypeError
    return RemoteFile(path, nbytes, sha256)
