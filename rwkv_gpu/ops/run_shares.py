"""Into how many runs the context of each row of a step is cut, which workgroups share."""

from dataclasses import dataclass

from ..gpu.shader import Constant

MOST_RUNS = 64  # of a context
SPLIT_PAGES = 16  # of a context that is worth more runs than others have
MOST_FURTHER = 32  # runs of a long row beside those that every row has,
FURTHER_OF_ALL = 512  # and of all rows if each had these: what they find has memory
MOST_ROWS = 64  # that share further runs
ROWS_BYTES = 4 * MOST_ROWS  # of workgroup memory that this takes


@dataclass(frozen=True)
class RunShares:
    """All rows have `even` runs; one that is so long that others would wait for it has some of `further` ones, too."""

    even: int = 1
    most: int = 1  # of a row
    further: int = 0
    rows: int = 1  # that share these

    @classmethod
    def all_even(cls, runs: int) -> "RunShares":
        """As many for each."""
        return cls(runs, runs)

    @classmethod
    def by_length(cls, even: int, rows: int, pages: int, further: int = 0) -> "RunShares":
        """For rows of sequences that may have so many pages; as many runs more as rows alike have, or `further`."""
        further = further or even * rows
        each = min(MOST_FURTHER, FURTHER_OF_ALL // rows, further)
        if not 1 < rows <= MOST_ROWS or pages < SPLIT_PAGES:
            return cls.all_even(even)
        return cls(even, even + each, further, rows)

    def count(self, rows: int) -> int:
        """Of so many rows."""
        return self.even * rows + self.further

    @property
    def constants(self) -> dict[str, Constant]:
        """What kernels know."""
        own: dict[str, Constant] = {"EVEN": self.even, "EXTRA": self.further, "STEP_ROWS": self.rows}
        return {"RUNS": self.most} | (own if self.further else {})

    @property
    def counting(self) -> str:
        """The part that knows how many runs a row has."""
        return "attention/runs/shared_out" if self.further else "attention/runs/even"

    @property
    def finding(self) -> str:
        """The part that knows which run a workgroup has."""
        return "attention/runs/further_runs" if self.further else "attention/runs/even_runs"


ONE = RunShares()
