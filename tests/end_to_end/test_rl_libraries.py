"""PPO of stable-baselines3 learns to grow a missing convolution."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from esper_study.gymnasium_env import GrowthEnv

SMALL = """
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
policy: random
reward: {use: team, settings: {price: 5}}
episode: {steps: 12, batches: 8, batch_size: 25}
"""
HELD_OUT = range(100, 108)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def built(file, seeds):
    return GrowthEnv(file, seeds=seeds, decide_every=4, speed=1, auto_fossilise=True)


def returned(env, choose):
    """Return the return of one episode for each of the environment's seeds."""
    returns = []
    for seed in env.seeds:
        (seen, info), total, over = env.reset(seed=seed), 0.0, False
        while not over:
            seen, reward, terminated, truncated, info = env.step(choose(seen, info))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.slow
def test_an_agent_of_stable_baselines_learns_which_blueprint_pays_on_seeds_that_it_never_saw(file):
    from stable_baselines3 import PPO

    env, held_out = built(file, range(8)), built(file, HELD_OUT)
    settings = {"n_steps": 48, "batch_size": 48, "learning_rate": 3e-3, "gamma": 1.0, "ent_coef": 0.01}
    agent = PPO("MlpPolicy", env, seed=0, device="cpu", **settings)
    agent.learn(192)
    learnt = returned(held_out, lambda seen, _: agent.predict(seen, deterministic=True)[0])
    draw = np.random.default_rng(0)
    by_chance = returned(held_out, lambda _, info: draw.choice(np.flatnonzero(info["action_mask"])))
    print(f"learnt {np.mean(learnt):.1f}, by chance {np.mean(by_chance):.1f}")
    assert all(map(math.isfinite, learnt))
    assert np.mean(learnt) > np.mean(by_chance) + 5
    assert np.mean(learnt) > 10
    env.close()
    held_out.close()


@pytest.mark.slow
def test_it_passes_the_checker_of_stable_baselines_and_offers_masks(file):
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env

    check_env(built(file, range(2)))
    many = make_vec_env(lambda: built(file, range(2)), n_envs=2, seed=5)
    agent = A2C("MlpPolicy", many, n_steps=3, device="cpu")
    agent.learn(24)
    many.reset()
    masks = many.env_method("action_masks")
    assert [mask.tolist() for mask in masks] == [[True, True, True, False, False]] * 2
    _, _, _, infos = many.step([1, 4])
    assert [info["refused"] for info in infos] == [False, True]
    for _ in range(2):
        _, _, dones, infos = many.step([0, 0])
    assert dones.tolist() == [True, True]
    assert [info["TimeLimit.truncated"] for info in infos] == [True, True]
    assert all(0 <= info["test_metric"] <= 1 for info in infos)
    many.close()
