"""What do seeds gain? The losses of the same examples, with and without them; the differences stay on the device.

While a seed incubates, or is on a branch, it is weighed against the host itself. Once it acts on the host there is no
host without it any more, and it is weighed against the twin at the same step, less what the twin was behind before.
Where two seeds act at once nobody can tell whose the gain is: then it is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.growth import paired

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from esper_core.growth import Garden, RandomStream
    from esper_core.trainer.evaluation import Measured


class Scales:
    """What living seeds gained in the last step: ``gains`` holds what ``growth.paired`` tells, by the seeds' numbers.

    stream: of the random numbers that a trial draws, so that it takes none from the host's evaluation.
    """

    def __init__(self, garden: Garden, stream: RandomStream) -> None:
        self._garden = garden
        self._stream = stream
        self._lead: Tensor | None = None
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
                with self._garden.trial(number), self._stream:
                    tried = evaluate().losses
                self.gains[number] = paired(losses, tried)
        if undisturbed is None:
            return
        if not acting:
            self._lead = undisturbed - losses
        elif len(acting) == 1 and self._lead is not None:
            self.gains[acting[0]] = paired(undisturbed - self._lead, losses)
