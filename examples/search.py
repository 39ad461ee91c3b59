"""Search for settings with Optuna: each trial is a run, judged on the validation data.

python examples/search.py plugins.yaml 20
"""

import sys
from statistics import mean

import optuna

import esper_run

FILE, TRIALS = sys.argv[1], int(sys.argv[2])


def objective(trial: optuna.Trial) -> float:
    """Train with the settings of a trial, and return the mean validation metric of the arms that grow."""
    rate = trial.suggest_float("rate", 1e-3, 1e-1, log=True)
    price = trial.suggest_float("price", 1e-4, 1e-1, log=True)
    settings = [f"optimizer.host.learning_rate={rate}", f"growth.price={price}"]
    outcome = esper_run.run(FILE, overrides=settings, name=f"trial-{trial.number}")
    ends = [event for event in esper_run.read_events(outcome.path / "events.jsonl") if event.type == "episode-finished"]
    return mean(event.validation_metric for event in ends if event.reward is not None and event.arm != "twin")


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=TRIALS)
    print(study.best_params)
