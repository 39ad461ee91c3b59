"""The policy ``ppo``: decides by its network, and learns after each round."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core.leyline import ARGUMENTS, WAIT, Action, State
from esper_policies.ppo.encoding import OPS, Pace, Scales, batch_of, episodes_of, outcome_of, see
from esper_policies.ppo.learning import evaluate, learn, lesson_of
from esper_policies.ppo.policy_network import Chances, Chosen, PolicyNetwork
from esper_policies.ppo.settings import PpoSettings
from esper_policies.ppo.trained_policies import (
    TrainedPolicy,
    check_save_folder,
    damage_reported,
    load_trained,
    optimizer_state,
    restore_optimizer,
    save_trained,
    setting_differences,
)
from esper_policies.random_policy import BITS, hashed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from esper_core.leyline import ActionMask, ActionSpace, Observation, Rollout
    from esper_policies.ppo.encoding import EpisodeDecisions, Seen


log = logging.getLogger("esper")

EPSILON: Final = 1e-5
"""Adam's epsilon: steps stay small where gradients are tiny."""


@dataclass(slots=True)
class Memory:
    """State of one environment's episode: levels for trends, and the network's memory."""

    levels: tuple[float, ...] | None = None
    hidden: Tensor | None = None


class Ppo:
    """Learns what to grow where and when, and whether, by proximal policy optimisation.

    It decides by rows of numbers, so it works with any number of slots and with blueprints that it never saw. Its draws
    are hashes, as those of ``random`` are; with ``learn: false`` it takes the likeliest decision. It sees the reward's
    price, if there is one.

    >>> from esper_core.leyline import ActionSpace
    >>> policy = Ppo(ActionSpace({"early": ("blueprints/mlp",)}), width=8, learn=False)
    >>> policy.act([], [])
    []

    space: the run's slots and blueprints. settings: those of ``PpoSettings``.
    """

    def __init__(self, space: ActionSpace, **settings: Any) -> None:
        self.space = space
        self.settings = checked = PpoSettings.model_validate(settings)
        self.pace = Pace(checked.decide_every, checked.last, checked.auto_fossilise)
        self.scales = Scales()
        self._has_warned = False
        self.round = 0
        if checked.save:
            check_save_folder(checked.save)
        trained = load_trained(checked.load) if checked.load else None
        self._names = list(trained.names) if trained else []
        with damage_reported(checked.load):
            self.network = self._built(trained)
            if trained:
                self.scales.load_state_dict(State(trained.scales, trained.tensors("scales")))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=checked.learning_rate, eps=EPSILON)
        if checked.learn:
            new = [name for blueprints in space.blueprints.values() for name in blueprints if name not in self._names]
            # As many as the network has embeddings for; the others are told apart by their descriptions alone.
            self._names += list(dict.fromkeys(new))[: self.network.names.num_embeddings - 1 - len(self._names)]
        self._memories: list[Memory] = []
        for words in [] if trained is None else setting_differences(checked, trained):
            log.warning("ppo: %s", words)
        if trained is None and not checked.learn:
            log.warning("ppo: neither load nor learn is set, so it decides with untrained weights")

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return for each environment the action that needs no decision, else the decided one."""
        del self._memories[len(observations) :]
        self._memories += [Memory() for _ in observations[len(self._memories) :]]
        actions: list[Action] = []
        undecided: list[int] = []
        for environment, (observation, mask) in enumerate(zip(observations, masks, strict=True)):
            if observation.step == 0 or observation.rolled_back:
                self._memories[environment] = Memory()
            forced = WAIT if observation.rolled_back else self.pace.by_itself(observation, mask)
            actions.append(WAIT if forced is None else forced)
            undecided += [environment] if forced is None else []
        for environment, action in zip(undecided, self._decided(observations, masks, undecided), strict=True):
            actions[environment] = action
        return actions

    def update(self, rollout: Rollout) -> Mapping[str, float]:
        """Learn from one round and return its statistics."""
        settings, round_ = self.settings, self.round
        self.round += 1
        if not settings.learn:
            return {}
        episodes, unknown = episodes_of(self.space, rollout, self.pace)
        figures = self._learnt(episodes, round_) if episodes else {}
        if unknown and not episodes and not self._has_warned:
            self._has_warned = True
            reason = "all rewards are unknown, so nothing is learnt; rewards need a twin (twin: true)"
            log.warning("arm %s: %s", rollout.arm, reason)
        if settings.save:
            self.save(settings.save)
        return figures

    def save(self, folder: str) -> None:
        """Save weights, scales and names to a folder that the setting ``load`` can name."""
        scales = self.scales.state_dict()
        network, size = self.network, {"width", "memory", "names"}  # a policy that was loaded and not trained further
        settings = self.settings.model_dump(mode="json", exclude={"load", "save", *size})
        settings |= {
            "width": network.width,
            "memory": network.memory is not None,
            "names": network.names.num_embeddings - 1,
        }
        trained = TrainedPolicy(tuple(self._names), settings, dict(scales.plain))
        save_trained(folder, trained, {"network": self.network.state_dict(), "scales": dict(scales.tensors)})

    def state_dict(self) -> State:
        """Return weights, the optimizer's state, scales, and the memory of each environment."""
        hidden = {str(n): m.hidden.clone() for n, m in enumerate(self._memories) if m.hidden is not None}
        return State.of(
            {
                "network": State({}, {name: tensor.clone() for name, tensor in self.network.state_dict().items()}),
                "optimizer": optimizer_state(self.optimizer),
                "scales": self.scales.state_dict(),
                "hidden": State({}, hidden),
            },
            round=self.round,
            names=list(self._names),
            levels=[None if memory.levels is None else list(memory.levels) for memory in self._memories],
        )

    def load_state_dict(self, state: State) -> None:
        """Restore the state of another policy with the same settings."""
        self.network.load_state_dict(dict(state.part("network").tensors))
        restore_optimizer(self.optimizer, state.part("optimizer"))
        hidden = {name: tensor.clone() for name, tensor in state.part("hidden").tensors.items()}
        self.scales.load_state_dict(state.part("scales"))
        self.round, self._names = state.plain["round"], list(state.plain["names"])
        self._memories = [
            Memory(None if levels is None else tuple(levels), hidden.get(str(n)))
            for n, levels in enumerate(state.plain["levels"])
        ]

    # Acting.

    def _decided(
        self, observations: Sequence[Observation], masks: Sequence[ActionMask], undecided: Sequence[int]
    ) -> list[Action]:
        """Decide for the environments at ``undecided``, in padded batches of ``together``."""
        actions: list[Action] = []
        for start in range(0, len(undecided), self.settings.together):
            environments = undecided[start : start + self.settings.together]
            seen = [see(self.space, observations[n], masks[n], self._memories[n].levels) for n in environments]
            chosen = self._chosen(environments, seen, [observations[n].step for n in environments])
            for row, (environment, state) in enumerate(zip(environments, seen, strict=True)):
                self._memories[environment].levels = state.levels
                action = state.action(OPS[int(chosen.op[row])], int(chosen.candidate[row]))
                actions.append(
                    replace(action, speed=self.settings.speed) if "speed" in ARGUMENTS[action.op] else action
                )
        return actions

    def _chosen(self, environments: Sequence[int], seen: Sequence[Seen], steps: Sequence[int]) -> Chosen:
        settings = self.settings
        more = settings.together - len(seen)
        padded, whose = [*seen, *[seen[0]] * more], [*environments, *[environments[0]] * more]
        numbers = [self._numbers(state, n, self.round) for state, n in zip(padded, whose, strict=True)]
        batch = self.scales.scaled(batch_of(padded, numbers))
        fresh = torch.zeros(self.network.width)
        hidden = (self._memories[environment].hidden for environment in whose)
        before = torch.stack([fresh if memory is None else memory for memory in hidden])[None]
        with torch.no_grad():
            scores, after = self.network(batch, before)
            chances = Chances(scores, batch.legal, batch.home)
            places = zip(whose, [*steps, *[0] * more], strict=True)
            luck = [hashed(settings.seed, self.round, *place, "what") / 2**BITS for place in places]
            chosen = chances.drawn(torch.tensor(luck)) if settings.learn else chances.best()
        if self.network.memory is not None:
            for row, environment in enumerate(environments):
                self._memories[environment].hidden = after[0, row].clone()
        return chosen

    # Learning.

    def _learnt(self, episodes: Sequence[EpisodeDecisions], round_: int) -> dict[str, float]:
        settings = self.settings
        self._rescale(episodes)
        lesson = lesson_of(episodes, partial(self._numbers, round_=round_), self.scales)
        worth = evaluate(self.network, lesson, settings, self.scales.returns)
        gone = min(1.0, round_ / settings.entropy_rounds)
        entropy = settings.entropy + (settings.entropy_end - settings.entropy) * gone
        figures = learn(
            self.network,
            self.optimizer,
            lesson,
            worth,
            settings,
            entropy=entropy,
            order=torch.Generator().manual_seed(hashed(settings.seed, round_, "order") >> 1),
        )
        # After learning: the scales of a round stay as they were when it was played.
        seen = [decision.seen for episode in episodes for decision in episode.decisions]
        self.scales.learn(batch_of(seen, [[0] * len(state.candidates) for state in seen]))
        return figures | {"entropy_weight": entropy, **outcome_of(episodes)}

    def _rescale(self, episodes: Sequence[EpisodeDecisions]) -> None:
        """Update the scale of returns, and rescale the value head so that its predictions stay the same."""
        grown = self.scales.learn_returns(
            [sum(decision.reward for decision in episode.decisions) for episode in episodes]
        )
        with torch.no_grad():
            for parameter in self.network.value[-1].parameters():
                parameter.div_(grown)

    def _numbers(self, seen: Seen, environment: int, round_: int) -> list[int]:
        """Return the name index of each candidate; 0: its name is unknown, or dropped in this episode."""
        settings = self.settings
        numbers = {name: number for number, name in enumerate(self._names, 1)}
        left_out = {
            name
            for name in {blueprint for _, blueprint in seen.candidates}
            if (settings.learn or settings.forget_names == 1.0)
            and hashed(settings.seed, round_, environment, name, "name") < settings.forget_names * 2**BITS
        }
        return [0 if blueprint in left_out else numbers.get(blueprint, 0) for _, blueprint in seen.candidates]

    def _built(self, trained: TrainedPolicy | None) -> PolicyNetwork:
        settings = self.settings if trained is None else PpoSettings.model_validate(trained.settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hashed(self.settings.seed, "weights") >> 1)
            network = PolicyNetwork(width=settings.width, names=settings.names, memory=settings.memory)
        if trained:
            network.load_state_dict(trained.tensors("network"))
        return network
