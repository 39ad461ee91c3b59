"""The optimizers of a user's own loop, as a garden sees them.

The user's optimizers train the host, and the user steps them. A branch needs steps of its own, on tensors of its own,
without effects on the user's objects: no hook may run, no schedule may count them. So a branch steps a **view**: an
object of the same class that shares the state of the optimizer and has copies of its groups, so that it writes into
none. ``owned_by_host`` and ``owned_by_seed`` copy the groups anew, with the learning rates of the loop's latest step.

While a seed lives on its branch it has a view with a state of its own and the settings of the groups that it will join.
When it is kept its parameters, with their state, are appended to those groups. No group is added while the loop trains,
so schedules, gradient scalers and clipping go on as before; one for seeds alone is added at the start if they are to
have a rate or a decay of their own.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esper_core.growth import Example, Host, OptimizerKeeper, OwnedParameters, state_mismatch
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from torch import nn

    from esper_core.growth import Seed

Group = dict[str, Any]
"""A group of parameters of an optimizer, with its settings."""

GroupPosition = tuple[int, int]
"""An optimizer and one of its groups, by their numbers."""


def optimizers_of(optimizer: Any, parameters: Sequence[nn.Parameter]) -> tuple[torch.optim.Optimizer, ...]:
    """Return the user's optimizers: one, several, or what a factory builds over ``parameters``.

    The optimizer inside a wrapper, such as that of accelerate, is taken out: wrappers have no hooks. A factory for a
    frozen host gets an empty placeholder, since torch refuses an optimizer without parameters.
    """
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(list(parameters) or [torch.nn.Parameter(torch.empty(0))])
    several = optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
    optimizers = tuple({id(candidate): candidate for candidate in map(unwrapped, several)}.values())
    for candidate in optimizers:
        if not isinstance(candidate, torch.optim.Optimizer):
            message = f"a Gardener needs the optimizer of your loop. Received: {type(candidate).__name__}"
            hint = "Pass a torch.optim.Optimizer, several in a list, or a function from parameters to an optimizer."
            raise GrowthError(Problem("E340", message, hint=hint))
        OwnedParameters.refuse_closure(candidate)
        held = [(name, value) for name, value in vars(candidate).items() if name not in _OF_THE_OBJECT]
        held += [(name, part) for name, value in held if isinstance(value, list | tuple) for part in value]
        held += [(name, part) for name, value in held if isinstance(value, dict) for part in value.values()]
        inner = next((name for name, value in held if isinstance(value, torch.optim.Optimizer)), None)
        if inner is not None:
            message = f"{type(candidate).__name__} steps another optimizer, which branches would step as well"
            raise GrowthError(Problem("E340", message, hint=f"Pass that one:  Gardener(model, optimizer.{inner}, …)"))
    owned = {id(parameter) for lender in optimizers for group in lender.param_groups for parameter in group["params"]}
    if parameters and not any(id(parameter) in owned for parameter in parameters):
        message = "the optimizer holds none of the model's parameters"
        hint = "Build it from this model, after the model was moved or wrapped:  Adam(model.parameters())"
        raise GrowthError(Problem("E341", message, hint=hint))
    return optimizers


def add_seed_group(
    optimizer: torch.optim.Optimizer, rate: float | None, decay: float | None, undo: ExitStack
) -> int | None:
    """Add a group for seeds alone, with a rate and a decay of its own; return its number, None if there is none.

    ``undo`` takes it off again.
    """
    for name, value in (("seed_lr", rate), ("seed_decay", decay)):
        if value is not None and not (isinstance(value, int | float) and 0.0 <= value < math.inf):
            message = f"{name} must be a number of at least 0, or None. Received: {value!r}"
            raise GrowthError(Problem("E347", message, hint="It is for the parameters of what grows."))
    if rate is None and decay is None:
        return None
    groups = optimizer.param_groups
    if (existing := next((number for number, group in enumerate(groups) if _OF_SEEDS in group), None)) is not None:
        return existing  # an earlier Gardener made it, and a schedule may know it
    if any("initial_lr" in group for group in groups):
        message = "seed_lr and seed_decay add a group to the optimizer, and a schedule of it was built before"
        hint = "Leave them out: seeds join the other groups. In a loop of your own, build the schedule afterwards."
        raise GrowthError(Problem("E347", message, hint=hint))
    if decay is not None and "weight_decay" not in optimizer.defaults:
        message = f"{type(optimizer).__name__} has no weight decay. Received: seed_decay={decay!r}"
        raise GrowthError(Problem("E347", message, hint="Leave it out."))
    settings = {"lr": rate, "weight_decay": decay}
    names: dict[str, Any] = {"param_names": []} if groups and "param_names" in groups[0] else {}
    chosen = {name: value for name, value in settings.items() if value is not None}
    optimizer.add_param_group({"params": [], _OF_SEEDS: True, **names, **chosen})
    undo.callback(groups.pop)
    return len(groups) - 1


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper, such as that of accelerate."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


@dataclass(frozen=True, slots=True)
class OwnedBySeed(OwnedParameters):
    """An owner of a living seed, whose optimizer is a view of ``lender``; ``members`` are by the groups of that.

    ``latest`` has the groups of the latest step of each of the user's optimizers, by their ids.
    """

    lender: torch.optim.Optimizer | None = None
    members: tuple[tuple[int, list[nn.Parameter]], ...] = ()
    latest: Mapping[int, list[Group]] = field(default_factory=dict)

    def renew(self) -> None:
        """Copy the settings of the user's groups as they were in the latest step."""
        if self.optimizer is not None and self.lender is not None:
            groups = _latest_groups(self.lender, self.latest)
            self.optimizer.param_groups = [{**groups[index], "params": members} for index, members in self.members]


class BorrowedOptimizers(OptimizerKeeper):
    """The keeper of a garden whose host is trained by the user's optimizers.

    Args:
        model: The host, grafted.
        optimizers: The user's; the model's parameters that none of them holds are taken to be frozen.
        clip_norm: The norm to which the user's loop clips gradients; None: it does not. Branches are clipped alike.
        seed_group: The group of the first optimizer that seeds join; None: those of similar parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        clip_norm: float | None = None,
        seed_group: int | None = None,
    ) -> None:
        self._model, self._host = model, Host(model)
        self.lenders = tuple(optimizers)
        self.clip_norm, self._seed_group = clip_norm, seed_group
        self.scaler = None
        self.host = OwnedParameters((), None)
        self.seeds: dict[int, OwnedParameters] = {}
        self.fossils: dict[int, OwnedParameters] = {}
        self._owners_of_seeds: dict[int, tuple[OwnedBySeed, ...]] = {}
        """All owners of each living seed, one for each optimizer that it will join; ``seeds`` holds the first."""
        self._positions: dict[int, GroupPosition] = {}
        """For each parameter of a living seed, by its id, the group that it will join."""
        self._views = [bare_copy(lender) for lender in self.lenders]
        self._in_model: tuple[nn.Parameter, ...] | None = None
        """The model's parameters, listed once between changes and calls of ``tend``: that is slow in large models."""
        self._latest: dict[int, list[Group]] = {}
        self.stepped: set[int] = set()
        """The optimizers that the loop has stepped on the latest batch, by their ids: branches step no others."""

    def remember_step(self, lender: torch.optim.Optimizer, *_: Any) -> None:
        """Remember a step of the loop and its settings, as a schedule may change them before branches step; a hook."""
        self.stepped.add(id(lender))
        self._latest[id(lender)] = _latest_groups(lender, {})

    def _listed(self) -> tuple[nn.Parameter, ...]:
        if self._in_model is None:
            self._in_model = tuple(self._model.parameters())
        return self._in_model

    def owned_by_host(self) -> tuple[OwnedParameters, ...]:
        """Return what the user's optimizers hold of the model: host and fossils. Other parameters are left out."""
        ids = set(map(id, self._listed()))
        owners = []
        for lender, view in zip(self.lenders, self._views, strict=True):
            members = [[member for member in group["params"] if id(member) in ids] for group in lender.param_groups]
            view.param_groups = [
                {**group, "params": in_model}
                for group, in_model in zip(_latest_groups(lender, self._latest), members, strict=True)
            ]
            view.state = lender.state  # another object since the user's latest load_state_dict()
            owners.append(OwnedParameters(tuple(chain(*members)), view))
        return tuple(owners)

    def owned_by_seed(self, number: int) -> tuple[OwnedParameters, ...]:
        """Return the owners of a living seed, one for each optimizer that it will join."""
        owners = self._owners_of_seeds[number]
        for owner in owners:
            owner.renew()
        return owners

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._listed():
            parameter.grad = None

    def host_gradients(self) -> list[Tensor]:
        """Return nothing: after a step the gradients are the loop's own, and may be scaled or left over."""
        return []

    def adopt(self, seed: Seed) -> None:
        """Add a seed's parameters to the optimizers, except those that an optimizer already has."""
        owned = {id(parameter) for owner in self.owned_by_host() for parameter in owner.parameters}
        new = [parameter for parameter in seed.parameters() if parameter.requires_grad and id(parameter) not in owned]
        at = next(at for at, slot in self._host.slots.by_module.items() if seed in list(slot.seeds))
        groups: dict[GroupPosition, list[nn.Parameter]] = {}
        for parameter in new:
            position = self._positions[id(parameter)] = self._group_for(parameter, at)
            groups.setdefault(position, []).append(parameter)
        of_lenders: dict[int, list[tuple[int, list[nn.Parameter]]]] = {}
        for (lender, index), members in groups.items():
            of_lenders.setdefault(lender, []).append((index, members))
        owners = [self._owner_of_seed(lender, of_lender) for lender, of_lender in of_lenders.items()]
        # Without anything to train a seed still has an owner, because each is asked for its own.
        self._set_owners(seed.number, owners or [OwnedBySeed((), None)])

    def release(self, number: int) -> None:
        """Drop a living seed."""
        for owner in self.owned_by_seed(number):
            owner.zero_grad()
        self._forget(number)

    def settle(self, seed: Seed, *, freeze: bool) -> None:
        """Let the parameters of a seed that is kept join the groups of the user's optimizers; or freeze it."""
        owners = self.owned_by_seed(seed.number)
        if freeze:
            self.release(seed.number)
            seed.requires_grad_(requires_grad=False)
            return
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        for owner in owners:
            for parameter in owner.parameters:
                lender, group = self._group_at(self._positions[id(parameter)])
                group["params"].append(parameter)
                if "param_names" in group:
                    group["param_names"].append(names[id(parameter)])
                if owner.optimizer is not None and parameter in owner.optimizer.state:
                    lender.state[parameter] = owner.optimizer.state[parameter]
        # As in a loaded model, so that an optimizer that is built for that one takes the saved state.
        self._arrange()
        self._forget(seed.number)

    def undo(self) -> Callable[[], None]:
        """Return a function that restores which seeds live, and what the user's groups hold."""
        seeds, of_seeds, positions = dict(self.seeds), dict(self._owners_of_seeds), dict(self._positions)
        held = [
            (position, {key: list(group[key]) for key in _MEMBERS if key in group})
            for position, group in self._groups()
        ]

        def put_back() -> None:
            self.seeds, self._owners_of_seeds, self._positions = seeds, of_seeds, positions
            self._in_model = None
            for position, members in held:
                lender, group = self._group_at(position)
                for joined in {*group["params"]} - {*members["params"]}:
                    lender.state.pop(joined, None)
                for key, values in members.items():
                    group[key][:] = values

        return put_back

    def open_step(self) -> None:
        """List the model's parameters anew, which the user may have changed; schedules are the user's."""
        self._in_model = None

    def step(self, blended: Iterable[int]) -> None:
        """Take one step of the host, of its fossils, and of the ``blended`` seeds, clipped together as in the loop."""
        seeds = [owner for number in blended for owner in self._owners_of_seeds[number] if owner.parameters]
        with _joined(seeds) as joined:
            lent = [
                *zip(self.lenders, self.owned_by_host(), strict=True),
                *((joint.lender, joint) for joint in joined),
            ]
            owners = [owner for lender, owner in lent if id(lender) in self.stepped]
            self.step_together(owners, self.clip_norm, seeds)
        self.update_scaler(self.scaler, owners)

    def forget_host_state(self) -> None:
        """Reset what the user's optimizers remember of the host, after a rollback."""
        for lender, owner in zip(self.lenders, self.owned_by_host(), strict=True):
            groups = [{**group, "params": [*group["params"]]} for group in owner.groups() if group["params"]]
            for parameter in owner.parameters:
                lender.state.pop(parameter, None)
            lender.state.update(_state_at_birth(lender, groups))

    def misowned(self, model: nn.Module) -> list[str]:
        """Return the trainable parameters of seeds that no optimizer owns, or several do. The host is the user's."""
        groups = [group["params"] for lender in self.lenders for group in lender.param_groups]
        of_seeds = [owner.parameters for owners in self._owners_of_seeds.values() for owner in owners]
        owned = Counter(id(parameter) for parameter in chain(*groups, *of_seeds))
        grown = grown_parameters(self._model)
        return [name for name, parameter in grown if parameter.requires_grad and owned[id(parameter)] != 1]

    def state_dict(self) -> State:
        """Return the state of the seeds' optimizers; that of the host's is the user's to save."""
        owners = {
            f"{number}-{position}": owner.state_dict()
            for number in self.seeds
            for position, owner in enumerate(self.owned_by_seed(number))
        }
        return State.of({**owners, "scaler": self.encode_scaler(self.scaler)}, order=list(self.seeds))

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of another keeper, whose garden had the same seeds."""
        order: list[int] = state.plain["order"]
        if sorted(order) != sorted(self.seeds):
            why = f"it is of seeds {order}, and here are {sorted(self.seeds)}"
            raise state_mismatch(why)
        self.scaler = self.decode_scaler(state.part("scaler"), self.scaler, self._host.device)
        self._arrange()
        before, self.seeds = self._owners_of_seeds, {}  # made anew, for gradient norms are summed in this order
        for number in order:
            parts = [state.part(f"{number}-{position}") for position, _ in enumerate(before[number])]
            self._set_owners(number, [owner.restored(part) for owner, part in zip(before[number], parts, strict=True)])

    def _arrange(self) -> None:
        """Put what grew at the end of each group, in the order of the model."""
        order = {id(parameter): position for position, (_, parameter) in enumerate(grown_parameters(self._model))}
        for _, group in self._groups():
            positions = sorted(
                range(len(group["params"])), key=lambda position: order.get(id(group["params"][position]), -1)
            )
            for key in (key for key in _MEMBERS if key in group):
                group[key][:] = [group[key][position] for position in positions]

    def _groups(self) -> list[tuple[GroupPosition, dict[str, Any]]]:
        return [
            ((number, index), group)
            for number, lender in enumerate(self.lenders)
            for index, group in enumerate(lender.param_groups)
        ]

    def _group_at(self, position: GroupPosition) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        lender = self.lenders[position[0]]
        return lender, lender.param_groups[position[1]]

    def _group_for(self, parameter: nn.Parameter, at: str) -> GroupPosition:
        """Return the group that a parameter of a seed behind the module ``at`` is to join.

        It is that of the host's nearest parameter of the same kind, a matrix or a vector, counted back from the end of
        the module; of those behind it, where there are none before; and of any kind, where there is none of the same.
        So it gets the weight decay of similar parameters in that layer. If there are none, the first group takes it.
        Groups of optimizers that refuse it are left out, those with a rate of 0 come last, and one for seeds is taken.
        """
        if self._seed_group is not None:
            return 0, self._seed_group
        open_to_it = [
            (position, group)
            for position, group in self._groups()
            if _takes(self.lenders[position[0]], group, parameter)
        ]
        positions = {id(member): position for position, group in open_to_it for member in group["params"]}
        still = {position for position, group in open_to_it if float(group.get("lr", 1.0)) == 0.0}
        host = [(name, candidate) for name, candidate in self._model.named_parameters() if id(candidate) in positions]
        names = list(self._host.parameters())
        order = [name for name, _ in self._model.named_modules()]
        inside = [order.index(name.rpartition(".")[0]) for name in names if name.startswith(f"{at}.")]
        last = max(inside, default=order.index(at))

        def distance(entry: tuple[str, nn.Parameter]) -> tuple[bool, bool, bool, int]:
            name, candidate = entry
            behind = order.index(name.rpartition(".")[0]) > last
            position = names.index(name) if name in names else len(names)
            is_still, is_unlike = positions[id(candidate)] in still, (candidate.ndim > 1) != (parameter.ndim > 1)
            return is_still, is_unlike, behind, position if behind else -position

        nearest = min(host, key=distance, default=None)
        if nearest is None:
            return next((position for position, _ in open_to_it), (0, 0))
        return positions[id(nearest[1])]

    def _owner_of_seed(self, number: int, members: list[tuple[int, list[nn.Parameter]]]) -> OwnedBySeed:
        """Return an owner of a seed's parameters, by the group of the user's optimizer that they will join."""
        lender = self.lenders[number]
        view = bare_copy(lender)
        parameters = tuple(chain(*(of_group for _, of_group in members)))
        owner = OwnedBySeed(parameters, view, lender=lender, members=tuple(members), latest=self._latest)
        owner.renew()
        # As torch's own: the first step looks up a state that is not there yet.
        view.state = defaultdict(dict, _state_at_birth(lender, view.param_groups))
        return owner

    def _set_owners(self, number: int, owners: Sequence[OwnedBySeed]) -> None:
        self.seeds[number], self._owners_of_seeds[number] = owners[0], tuple(owners)
        self._in_model = None

    def _forget(self, number: int) -> None:
        for owner in self._owners_of_seeds.pop(number):
            for parameter in owner.parameters:
                self._positions.pop(id(parameter), None)
        del self.seeds[number]
        self._in_model = None


@contextmanager
def _joined(owners: Sequence[OwnedBySeed]) -> Iterator[list[OwnedBySeed]]:
    """Join the owners of several seeds, for the ``with`` block: one for each of the user's optimizers steps them all.

    A step for each of thirty adapters would take longer than their gradients.
    """
    joined: list[OwnedBySeed] = []
    of_lenders: dict[int, list[OwnedBySeed]] = {}
    for owner in owners:
        of_lenders.setdefault(id(owner.lender), []).append(owner)
    for alike in of_lenders.values():
        lender = alike[0].lender
        assert lender is not None
        groups: dict[int, list[nn.Parameter]] = {}
        for owner in alike:
            for index, members in owner.members:
                groups.setdefault(index, []).extend(members)
        view, state = bare_copy(lender), defaultdict[Any, Any](dict)
        for owner in alike:
            state.update(_state_of(owner))
        view.state = state
        parameters = tuple(chain(*(owner.parameters for owner in alike)))
        joint = OwnedBySeed(parameters, view, lender=lender, members=tuple(groups.items()), latest=alike[0].latest)
        joint.renew()
        joined.append(joint)
    yield joined
    for joint, alike in zip(joined, of_lenders.values(), strict=True):
        after = _state_of(joint)
        for owner in alike:
            _state_of(owner).update({member: after[member] for member in owner.parameters if member in after})


def _latest_groups(lender: torch.optim.Optimizer, latest: Mapping[int, list[Group]]) -> list[Group]:
    """Return the groups of an optimizer as they were in its latest step; tensors and containers are copied."""
    stepped = latest.get(id(lender), [])[: len(lender.param_groups)]
    groups = [*stepped, *lender.param_groups[len(stepped) :]]
    return [{name: value if name in _MEMBERS else _copied(value) for name, value in group.items()} for group in groups]


def _copied(value: Any) -> Any:
    return Example(value, 0).copy() if isinstance(value, Tensor | list | dict) else value


def _state_of(owner: OwnedParameters) -> dict[Any, Any]:
    return {} if owner.optimizer is None else owner.optimizer.state


def grown_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of the seeds in a model, with names that begin with those of their slots."""
    for slot in Host(model).slots.by_module.values():
        yield from slot.named_parameters(prefix=slot.name)


_OF_SEEDS = "esper_seeds"
"""Key of the group that only what grows joins."""

_MEMBERS = ("params", "param_names")
"""The keys of a group that list its parameters."""

_OF_THE_OBJECT = {"step", "zero_grad", "param_groups", "state"}
"""Attributes that a copy has of its own; schedules replace ``step`` by a function that counts."""


def bare_copy(lender: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer with class and attributes of ``lender``, without hooks, schedules, state and groups.

    ``copy.deepcopy`` loses the attributes of subclasses, and takes along what a schedule has put on the object.
    """
    bare: torch.optim.Optimizer = object.__new__(type(lender))
    for name, value in vars(lender).items():
        if name not in _OF_THE_OBJECT:
            vars(bare)[name] = OrderedDict() if name.endswith("_hooks") else value
    return bare


def _takes(lender: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> bool:
    """Return whether an optimizer can train a parameter: SparseAdam takes no dense gradients, Muon matrices alone."""
    if isinstance(lender, torch.optim.SparseAdam):
        return False
    kind: Callable[[Any], torch.optim.Optimizer] = type(lender)
    try:
        # By trying, since no class tells what it refuses.
        kind([{**group, "params": [parameter]}])
    except ValueError:
        return False
    except Exception:  # a class of the user's own, with other arguments
        return True
    return True


def _state_at_birth(lender: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> dict[Any, Any]:
    """Return the state that a new optimizer of this class has before its first step: most have none."""
    try:
        kind: Callable[[Any], torch.optim.Optimizer] = type(lender)
        return dict(kind([{**group} for group in groups]).state) if groups else {}
    except Exception:  # a class of the user's own, with other arguments; then its state begins with its first step
        return {}
