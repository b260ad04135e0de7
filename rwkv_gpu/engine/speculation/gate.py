"""Turns drafting on and off: drafts are made while they gain time compared with steps submitted ahead."""

from collections import Counter
from collections.abc import Callable, Sequence

from .acceptance import DraftState
from .costs import StepCosts, bucket

BLIND = 100  # maximum steps without drafts before they must be measured
TRIAL, WATCHED = 4.0, 1.0  # credit when drafting starts: if drafts must be tried, and if they were watched
MOST = 16.0  # maximum saved credit, and debt that remains when drafting stops
REPAID = 1 / 16  # share of the draft model's reading cost that each step repays
# Credit that each step without drafts saves for the next trial. It limits the share of time that trials may lose.
# It is highest after drafts that gained, lower before any trial, and lowest after many losses; each loss halves it.
HOPEFUL, NEW, SPARING = 0.08, 0.04, 0.005


class SpeculationGate:
    """A credit account of drafts, in units of steps without drafts.

    A step with drafts earns its tokens and pays its time. Drafts stop when no credit is left. So they lose at most what
    they gained plus the cost of a trial, and a short bad phase does not stop drafts that gained. Lookup drafts are
    watched while off: they are compared with the generated tokens at no GPU cost, and earn what they would have gained.
    A draft model must be tried: each step without it saves credit for the next trial.
    """

    def __init__(self, *, always: bool = False, watches: bool = False) -> None:
        """`watches`: drafts are watched while they are off."""
        self.on = always
        self.always = always
        self._watches = watches
        self._drafts = True  # result of the account; drafts are also off while steps without drafts are measured
        self._price = WATCHED if watches else TRIAL  # credit at the start of drafting
        self._credit = self._price
        self._debt = 0.0  # reading cost of the draft model, not repaid yet
        self._budget = NEW  # credit saved by a step without drafts
        self._unmeasured: Counter[int] = Counter()  # steps without drafts before their time was known

    def decide(
        self, drafting: Sequence[DraftState], sequences: int, costs: StepCosts, pays: Callable[[], bool] = lambda: True
    ) -> None:
        """Turns drafts on or off before a step of `sequences` sequences.

        Drafts are off if none `pays`, even with all tokens right.
        """
        if self.always or not drafting:
            return
        if self._drafts and self._credit <= 0:
            self._drafts = False
            self._budget = max(SPARING, self._budget / 2)
            self._credit = max(-MOST, self._credit - self._debt)
            self._debt = 0.0
        elif not self._drafts and self._credit >= self._price and pays():
            self._drafts = True
            if not self._watches:  # old rates are outdated, and low ones would prevent all drafts
                for one in drafting:
                    one.forget()
        self.on = self._drafts and not self._learns(sequences, costs) and pays()

    def verified(self, tokens: int, rows: int, sequences: int, costs: StepCosts, drafted: int = 0) -> None:
        """Books a step of `rows` rows with drafts: `tokens` were generated, `drafted` draft model steps were taken."""
        paid = REPAID * self._debt
        self._debt -= paid
        self._earn(tokens / sequences - costs.relative(rows, sequences, drafted) - paid)

    def read(self, seconds: float, sequences: int, costs: StepCosts) -> None:
        """Books the time in which a draft model read texts; later steps repay it."""
        self._debt += max(0.0, seconds) / costs.undrafted(sequences)

    def watched(self, gained: float, sequences: int) -> None:
        """Books the tokens that a watched draft would have gained. Nothing was lost, so it cannot create debt."""
        if self._watches:
            self._earn(gained / sequences)
            self._credit = max(0.0, self._credit)

    def undrafted(self, tokens: int, sequences: int) -> None:
        """Books the tokens of steps without drafts: they save credit for a trial if drafts cannot be watched."""
        if not self._watches and not self._drafts:
            self._earn(self._budget * tokens / sequences)

    def _learns(self, sequences: int, costs: StepCosts) -> bool:
        """True if the time of steps without drafts is still to be measured. It is estimated if texts are too short."""
        size = bucket(sequences)
        if costs.known(sequences):
            del self._unmeasured[size]
            return False
        self._unmeasured[size] += 1
        return self._unmeasured[size] <= BLIND

    def _earn(self, credit: float) -> None:
        self._credit += credit
        if self._credit >= MOST:
            self._credit, self._budget = MOST, HOPEFUL
