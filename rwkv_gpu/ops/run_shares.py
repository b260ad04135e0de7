"""The number of runs that the context of each row of a step is split into, for separate workgroups."""

from dataclasses import dataclass

from ..gpu.shader import Constant

MAX_RUNS = 64  # maximum runs of a context
SPLIT_PAGES = 16  # minimum pages of a context for further runs
MAX_FURTHER = 32  # maximum further runs of a long row, in addition to its even runs
FURTHER_OF_ALL = 512  # maximum runs of all rows together, as their results need memory
MAX_ROWS = 64  # maximum rows of a step with further runs
ROWS_BYTES = 4 * MAX_ROWS  # bytes of workgroup memory for their shares


@dataclass(frozen=True)
class RunShares:
    """Each row has `even` runs. Long rows, for which others would wait, also get a share of `further` runs."""

    even: int = 1
    most: int = 1  # maximum runs of a row
    further: int = 0
    rows: int = 1  # rows that share the further runs

    @classmethod
    def all_even(cls, runs: int) -> "RunShares":
        """The same number of runs for each row."""
        return cls(runs, runs)

    @classmethod
    def by_length(cls, even: int, rows: int, pages: int, further: int = 0) -> "RunShares":
        """The shares for rows of sequences of at most `max_pages`; `further` defaults to the total of even runs."""
        further = further or even * rows
        each = min(MAX_FURTHER, FURTHER_OF_ALL // rows, further)
        if not 1 < rows <= MAX_ROWS or pages < SPLIT_PAGES:
            return cls.all_even(even)
        return cls(even, even + each, further, rows)

    def count(self, rows: int) -> int:
        """The total number of runs of a number of rows."""
        return self.even * rows + self.further

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of kernels."""
        own: dict[str, Constant] = {"EVEN": self.even, "EXTRA": self.further, "STEP_ROWS": self.rows}
        return {"RUNS": self.most} | (own if self.further else {})

    @property
    def counting(self) -> str:
        """The part that computes the number of runs of a row."""
        return "attention/runs/shared_out" if self.further else "attention/runs/even"

    @property
    def finding(self) -> str:
        """The part that finds the run of a workgroup."""
        return "attention/runs/further_runs" if self.further else "attention/runs/even_runs"


ONE = RunShares()
