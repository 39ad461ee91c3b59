"""What do seeds gain? The losses of the same examples, with and without them; the differences stay on the device.

While a seed incubates, or is on a branch, it is weighed against the host itself. Once it acts on the host there is no
host without it any more, and it is weighed against the twin at the same step, less what the twin was behind when it
began. Where two seeds act at once, or another was kept since, nobody can tell whose the gain is: then it is unknown,
until there is a step in which none acts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.growth import SeedFault, device_of, disturbed, heard, paired, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from esper_core.growth import Garden, RandomStream, Seed
    from esper_core.leyline.resuming import State
    from esper_core.trainer.evaluation import Measured


class Scales:
    """What living seeds gained in the last step: ``gains`` holds what ``growth.paired`` tells, by the seeds' numbers.

    stream: of the random numbers that a trial draws, so that it takes none from the host's evaluation.
    """

    def __init__(self, garden: Garden, stream: RandomStream) -> None:
        self._garden = garden
        self._stream = stream
        self._lead: Tensor | None = None
        self._fossils: tuple[Seed, ...] = ()
        self.gains: dict[int, Tensor] = {}

    def weigh(self, evaluate: Callable[[], Measured], losses: Tensor, undisturbed: Tensor | None) -> None:
        """Weigh every living seed.

        evaluate: the network as it acts, on the validation split. losses: what it gave without any trial, one for each
        example; ``undisturbed`` those of the twin, None where there is none.
        """
        self.gains = {}
        acting = self._garden.blended
        for number in self._garden.incubating:
            if number not in acting:
                self.gains[number] = paired(losses, self._tried(number, evaluate))
        if undisturbed is None:
            return
        fossils = tuple(seed for slot in self._garden.slots.values() for seed in slot.fossils)
        if not any(slot.strength > 0.0 for slot in self._garden.slots.values()):
            self._lead, self._fossils = undisturbed - losses, fossils
        elif len(acting) != 1 or fossils != self._fossils:
            self._lead = None
        elif self._lead is not None:
            self.gains[acting[0]] = paired(undisturbed - self._lead, losses)

    def forget_lead(self) -> None:
        """The twin is not what it was: what a seed gains that acts now is unknown until none does."""
        self._lead = None

    def state(self) -> State:
        """The gains, what the twin was behind when no seed acted, with which fossils, and the random numbers."""
        return told(
            {
                "gains": self.gains,
                "lead": self._lead,
                "fossils": [seed.number for seed in self._fossils],
                "stream": self._stream.state(),
            }
        )

    def load(self, state: State) -> None:
        """Know what other scales knew, of a garden that has grown as this one has."""
        known = heard(state, device_of(self._garden.model))
        fossils = {seed.number: seed for slot in self._garden.slots.values() for seed in slot.fossils}
        self.gains, self._lead = known["gains"], known["lead"]
        self._fossils = tuple(fossils[number] for number in known["fossils"])
        self._stream.go_to(known["stream"])

    def _tried(self, number: int, evaluate: Callable[[], Measured]) -> Tensor:
        """The losses with one incubating seed, who answers for what it does to torch on the way."""
        with self._garden.trial(number), self._stream:
            tried = evaluate().losses
        if done := disturbed():
            slot, _ = self._garden.home_of(number)
            raise SeedFault([slot.name], done, number=number)
        return tried
