"""The tools of a chat: each call by the model is shown, and runs if the user agrees."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.chat import NOT_CALLED
from rwkv_gpu.mcp.result import Result, cut

from .folders import YES, chosen
from .keyboard import Source
from .screen import Screen
from .terminal import PAUSE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rwkv_gpu.mcp.client import ToolServers

MAX_SHOWN = 4000  # characters shown of a call's arguments
MAX_OF_RESULT = 300  # characters shown of a result


class ChatTools:
    """The tools of MCP servers in a chat, and those that the user always allows."""

    def __init__(self, servers: "ToolServers", screen: Screen, source: Source) -> None:
        self._servers, self._screen, self._source = servers, screen, source
        self._allowed: set[str] = set()
        self._told: set[str] = set()

    def close(self) -> None:
        """Ends the servers."""
        self._servers.close()

    def as_dicts(self) -> list[dict[str, Any]]:
        """The tools in the form of OpenAI's API."""
        return [tool.as_dict() for tool in self._servers.tools]

    def greet(self) -> None:
        """Reports the connected servers, and the errors of the others."""
        count: dict[str, int] = {}
        for tool in self._servers.tools:
            count[tool.server] = count.get(tool.server, 0) + 1
        if count:
            each = ", ".join(f"{server} ({number})" for server, number in count.items())
            self._screen.note(f"tools of MCP servers: {each}; /tools lists them")
        self._tell_faults()

    def lines(self) -> list[str]:
        """The tools, and whether they run without a question."""
        lines = []
        for tool in self._servers.tools:
            always = " (always allowed)" if tool.name in self._allowed else ""
            first = (tool.description.splitlines() or [""])[0]
            lines.append(f"{tool.name}, of {tool.server}{always}: {first}")
        return lines or ["there are no tools"]

    def results(self, calls: Sequence[Mapping[str, Any]], stopped: Callable[[], bool]) -> list[str]:
        """The results of calls, in order. Raises KeyboardInterrupt if `stopped`."""
        return [self._result(str(call["name"]), str(call["arguments"]), stopped) for call in calls]

    def _result(self, name: str, arguments: str, stopped: Callable[[], bool]) -> str:
        tool = self._servers.tool(name)
        self._screen.note(f"{'' if tool is None else tool.server + ': '}{name}({cut(arguments, MAX_SHOWN)})", "bold")
        if tool is not None and not self._agrees(name, stopped):
            return NOT_CALLED
        result = self._awaited(self._servers.begin(name, arguments), stopped)
        shown = " ".join(result.text.split())
        self._screen.note(cut(shown, MAX_OF_RESULT).replace("\n", " "), "red" if result.failed else "dim")
        self._tell_faults()
        return result.text

    def _agrees(self, name: str, stopped: Callable[[], bool]) -> bool:
        if name in self._allowed or chosen(YES):
            return True
        try:
            answer = self._source.choose("run it? y: once, a: always, N: no ", stopped)
        except EOFError:
            raise BadInput(f"the model calls {name}, and there is no terminal to ask on; -y allows all calls") from None
        if answer in ("a", "always"):
            self._allowed.add(name)
        return answer in ("y", "yes", "o", "once", "a", "always")

    @staticmethod
    def _awaited(future: "Future[Result]", stopped: Callable[[], bool]) -> Result:
        while True:
            try:
                return future.result(PAUSE)
            except TimeoutError:
                if stopped():
                    future.cancel()
                    raise KeyboardInterrupt from None

    def _tell_faults(self) -> None:
        for fault in self._servers.faults:
            if fault not in self._told:
                self._told.add(fault)
                self._screen.error(fault)
