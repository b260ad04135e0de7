"""Pages by number, with a count of the holders of each. Knows nothing of what they hold."""

from collections.abc import Iterable


class PagePool:
    """So many pages, each free or held; whoever holds one releases it as often as it was held."""

    def __init__(self, pages: int) -> None:
        self._holders = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # taken from the end, lowest first

    @property
    def pages(self) -> int:
        """All of them."""
        return len(self._holders)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """How often a page is held."""
        return self._holders[page]

    def take(self) -> int:
        """A free page, held once."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, pages: Iterable[int]) -> tuple[int, ...]:
        """Keeps pages that somebody has, until they are released once more."""
        held = tuple(pages)
        for page in held:
            assert self._holders[page], f"page {page} is nobody's"
            self._holders[page] += 1
        return held

    def release(self, pages: Iterable[int]) -> None:
        """Gives back pages that were taken or held; those of one sequence are taken again in their order."""
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            assert self._holders[page] >= 0, f"page {page} was released too often"
            if not self._holders[page]:
                self._free.append(page)
