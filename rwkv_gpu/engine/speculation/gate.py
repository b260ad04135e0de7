"""Whether drafts are made at the moment: as long as they earn what they cost, beside steps that are submitted ahead."""

from collections import Counter
from collections.abc import Callable, Sequence

from .acceptance import Drafting
from .costs import StepCosts, bucket

BLIND = 100  # steps without drafts that may go by until they are measured
TRIAL, WATCHED = 4.0, 1.0  # credit that drafts begin with: those that must be tried, and those that can be watched
MOST = 16.0  # credit that they can save for worse times, and debt that is left when they end
REPAID = 1 / 16  # of what a draft model has read, the share that each step pays
# Credit that a step without drafts saves for the next trial, the share of the time that trials may lose: after drafts
# that have gained, before anything is known, and after many that have lost. Each that has lost halves it.
HOPEFUL, NEW, SPARING = 0.08, 0.04, 0.005


class SpeculationGate:
    """An account of drafts, in units of steps without drafts.

    A step with drafts earns its tokens and pays its time. Drafts are off when nothing is left. So they lose no more
    than they have gained and what a trial may cost, and some bad luck ends no drafts that have gained. Drafts by lookup
    are watched while they are off, which costs the GPU nothing, and earn what they would have gained. A draft model
    must be tried: each step without it saves for the next trial.
    """

    def __init__(self, *, always: bool = False, watches: bool = False) -> None:
        """`watches` says that drafts are watched while they are off."""
        self.on = always
        self.always = always
        self._watches = watches
        self._drafts = True  # what the account says; drafts are off all the same while steps without are measured
        self._price = WATCHED if watches else TRIAL  # of beginning
        self._credit = self._price
        self._debt = 0.0  # what a draft model has read, and drafts have not paid for
        self._budget = NEW  # that a step without drafts saves
        self._unmeasured: Counter[int] = Counter()  # steps without drafts before anybody knew what they take

    def decide(
        self, drafting: Sequence[Drafting], sequences: int, costs: StepCosts, pays: Callable[[], bool] = lambda: True
    ) -> None:
        """Drafts on or off, before a step of so many sequences; off where no draft `pays`, however right it is."""
        if self.always or not drafting:
            return
        if self._drafts and self._credit <= 0:
            self._drafts = False
            self._budget = max(SPARING, self._budget / 2)
            self._credit = max(-MOST, self._credit - self._debt)
            self._debt = 0.0
        elif not self._drafts and self._credit >= self._price and pays():
            self._drafts = True
            if not self._watches:  # what was known is old, and low chances would have nothing drafted
                for one in drafting:
                    one.forget()
        self.on = self._drafts and not self._learns(sequences, costs) and pays()

    def verified(self, tokens: int, rows: int, sequences: int, costs: StepCosts, drafted: int = 0) -> None:
        """A step of so many rows, drafts among them, gave so many tokens; a draft model took so many steps."""
        paid = REPAID * self._debt
        self._debt -= paid
        self._earn(tokens / sequences - costs.relative(rows, sequences, drafted) - paid)

    def read(self, seconds: float, sequences: int, costs: StepCosts) -> None:
        """A draft model has read texts: the steps to come pay for it."""
        self._debt += max(0.0, seconds) / costs.undrafted(sequences)

    def watched(self, gained: float, sequences: int) -> None:
        """A draft that was watched would have gained so many tokens. None was lost: there is no debt."""
        if self._watches:
            self._earn(gained / sequences)
            self._credit = max(0.0, self._credit)

    def undrafted(self, tokens: int, sequences: int) -> None:
        """Steps without drafts gave so many tokens: they save for a trial, where nobody can watch drafts."""
        if not self._watches and not self._drafts:
            self._earn(self._budget * tokens / sequences)

    def _learns(self, sequences: int, costs: StepCosts) -> bool:
        """Whether nobody knows what steps without drafts take. Where texts are too short to measure it is guessed."""
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
