"""What does a garden tell a checkpoint, and how does another one go on from it?

What grew comes back as the journal says, into slots that are empty; then every number of the model, whatever shape it
has by now; then what the optimizers remember, and what each seed's incubation does. It is told between two steps: no
loss is waited for then, no stream is lent, and gradients that lie there are of no use to anybody.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from esper_core.growth.grafting import slots_of
from esper_core.growth.journal import parse_network, read_network, resume
from esper_core.growth.memory import heard, unfit
from esper_core.growth.numbers import numbers_of, put_numbers
from esper_core.growth.rebuilding import replant
from esper_core.leyline.errors import GrowthError, Problem, suggestion
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.growth.garden import Garden
    from esper_core.growth.incubation import Incubation
    from esper_core.growth.journal import Network
    from esper_core.growth.planting import Variety

SOURCE = "the state"


def state_of(garden: Garden, incubations: Mapping[int, Incubation]) -> State:
    """All that the garden knows, its model and its keeper among it."""
    network = read_network(slots_of(garden.model), type(garden.model).__name__)
    ways = {str(number): incubation.state() for number, incubation in incubations.items()}
    parts = {"numbers": numbers_of(garden.model), "keeper": garden.keeper.state(), "gates": garden.gates.state()}
    return State.of(
        {**parts, "incubations": State.of(ways)},
        grown=json.loads(json.dumps(network.as_json())),
        born=garden.born,
        incubating=list(incubations),
    )


def regrow(garden: Garden, varieties: Mapping[str, Mapping[str, Variety]], state: State) -> None:
    """Put what grew into the model's slots, and every number in its place.

    varieties: by slot and by full id what may grow there.

    GrowthError where the slots are not those of the state, or not empty, or a blueprint or a number does not fit.
    """
    known = {id_: variety for own in varieties.values() for id_, variety in own.items()}

    def find(id_: str) -> Variety:
        if id_ not in known:
            message = f'"{id_}" grew where {SOURCE} was taken, and cannot grow here'
            raise GrowthError(Problem("E303", message, hint=suggestion(id_, known)))
        return known[id_]

    numbers = heard(state.part("numbers"))
    replant(garden.model, _grown(state), numbers["parameters"], find, source=SOURCE)
    put_numbers(garden.model, state.part("numbers"))


def recall(garden: Garden, incubations: dict[int, Incubation], state: State) -> None:
    """Know what the other garden knew, of seeds that this one has taken in."""
    order: list[int] = state.plain["incubating"]
    if sorted(order) != sorted(incubations):
        why = f"seeds {order} incubated, and here {sorted(incubations)} do"
        raise unfit(why)
    garden.keeper.load(state.part("keeper"))
    garden.gates.load(state.part("gates"))
    ways = dict(incubations)
    incubations.clear()  # the order counts, too: in it seeds are trained
    for number in order:
        incubations[number] = ways[number]
        incubations[number].load(state.part("incubations").part(str(number)))
    stacks = [seed for slot in garden.slots.values() for seed in slot.stack]
    for seed, growth in zip(stacks, _grown(state).seeds, strict=True):
        resume(seed, growth)  # some ways to incubate move alpha when they begin
    garden.born = state.plain["born"]


def _grown(state: State) -> Network:
    told: Any = state.plain["grown"]
    return parse_network(json.dumps(told), source=SOURCE)
