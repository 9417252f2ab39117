"""The Optuna study: parameters of trials, reported losses, final states.

One process writes; trials train in other processes, without access to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys_moe.errors import ConfigError, RunError, UserError
from recsys_moe.files import replacing
from recsys_moe.lab.tune.dimensions import Choices, Space
from recsys_moe.lab.tune.plan import StudyPlan
from recsys_moe.lab.tune.space import untried
from recsys_moe.lab.tune.storage import DATABASE, load_optuna
from recsys_moe.seeds import stream_seed

REDUCTION = 4
"""One of this many trials continues (Li et al. 2020, ASHA's eta)."""
DRAWS = 20
"""Attempts to draw settings that no trial has; then they are enumerated."""
DIVERGED = "diverged"
"""Attribute of a trial whose loss is not finite."""
GIVEN = "given"
"""Attribute of the trial that is the given configuration."""


@dataclass(frozen=True)
class Entry:
    """A trial as the database has it."""

    number: int
    state: str
    """complete, pruned, diverged, or running (also after an interruption)."""
    params: dict[str, Any]
    loss: float | None
    """Validation loss of the kept epoch; of a pruned trial, up to the pruning. None without one."""
    given: bool
    """Whether it is the given configuration."""


def rungs(max_epochs: int) -> list[int]:
    """Epochs after which a trial may be pruned: a sixteenth and a quarter of all."""
    first = max(max_epochs // REDUCTION**2, 1)
    return [epoch for epoch in (first, first * REDUCTION) if epoch < max_epochs]


class Study:
    """Creates trials and records results. Raises RunError if the database fails."""

    def __init__(self, plan: StudyPlan, out: Path, storage: str | None) -> None:
        self.optuna = load_optuna()
        import sqlalchemy

        self.plan, self.out = plan, out
        self.rungs = rungs(plan.config["trainer"]["max_epochs"])
        # Written so, whatever is in the name: a ? in it begins no query.
        file = sqlalchemy.URL.create("sqlite", database=str((out / DATABASE).resolve()))
        url = storage or file.render_as_string()
        with self._stored():
            self._storage = self._open(url)
            self._study = self.optuna.create_study(
                study_name=plan.study,
                storage=self._storage,
                load_if_exists=True,
                direction="minimize",
                pruner=self._pruner(),
            )
            if plan.given and not self._study.get_trials(deepcopy=False):
                self._study.enqueue_trial(plan.given, user_attrs={GIVEN: True})
        if not self.entries() and any((out / "trials").glob("*")):
            raise RunError(
                f"study {plan.study} is not in --storage {plan.storage}, but {out} has trials; "
                "restore the database or choose another --out"
            )

    def plot(self, file: Path) -> None:
        """Plot the losses by trial, and the best so far."""
        from matplotlib import pyplot

        pyplot.switch_backend("agg")
        with self._stored():
            axes = self.optuna.visualization.matplotlib.plot_optimization_history(self._study)
        with replacing(file) as stream:
            axes.figure.savefig(stream, format="png", bbox_inches="tight")
        pyplot.close(axes.figure)

    def close(self) -> None:
        """Close the connections to the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _open(self, url: str) -> Any:
        try:
            return self.optuna.storages.RDBStorage(url)
        except ImportError:
            raise ConfigError(
                f"--storage {self.plan.storage} needs a driver that is not installed; "
                "for PostgreSQL: pip install 'recsys-moe[postgres]', and use "
                "postgresql+psycopg://"
            ) from None

    def _pruner(self) -> Any:
        if self.plan.pruner == "none":
            return self.optuna.pruners.NopPruner()
        first = self.rungs[0] if self.rungs else 1
        return self.optuna.pruners.SuccessiveHalvingPruner(first, REDUCTION)

    @contextmanager
    def _stored(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            try:
                yield
            except (SQLAlchemyError, self.optuna.exceptions.StorageInternalError) as error:
                cause = str(getattr(error, "orig", None) or error.__cause__ or error)
                raise RunError(
                    f"--storage {self.plan.storage}: {cause.splitlines()[0]}; finished runs are in "
                    f"{self.out}; run the same command again when the database responds"
                ) from None
            except UserError:
                raise
            except (RuntimeError, ValueError, LookupError, TypeError) as error:
                # tables of another version of optuna, or cells that were changed
                cause = (str(error).splitlines() or [type(error).__name__])[0]
                raise RunError(f"--storage {self.plan.storage}: {cause}") from None

    def entries(self) -> list[Entry]:
        """All trials so far, by number."""
        with self._stored():
            trials = self._study.get_trials(deepcopy=False)
        # A waiting one is the given configuration, or queued by another tool, and not begun.
        return [_entry(trial) for trial in trials if trial.state.name != "WAITING"]

    def ask(self) -> OpenTrial | None:
        """A new trial, the given configuration first; None if `tpe` has tried the whole space.

        Parameters depend on the seed, the number of the trial and the results so far. They are
        drawn in another study and queued at once, so that a kill leaves no partial trial.
        """
        with self._stored():
            trials = self._study.get_trials(deepcopy=False)
            if all(trial.state.name != "WAITING" for trial in trials):
                params = self._new(trials)
                if params is None:
                    return None
                self._study.enqueue_trial(params)
            return OpenTrial(self, self._study.ask())

    def _new(self, trials: list[Any]) -> dict[str, Any] | None:
        """The parameters of the next trial.

        With `tpe` no settings repeat: a run is determined by its settings and the seed. `random`
        draws independently.
        """
        tried = [trial.params for trial in trials]
        for again in range(DRAWS):
            params = self._drawn(trials, *([again] if again else []))
            if self.plan.sampler == "random" or params not in tried:
                return params
        return untried(self.plan.space, tried)

    def _drawn(self, trials: list[Any], *again: int) -> dict[str, Any]:
        seed = stream_seed(self.plan.config["trainer"]["seed"], "tune", len(trials), *again) % 2**32
        samplers = self.optuna.samplers
        if self.plan.sampler == "random":
            sampler = samplers.RandomSampler(seed)
        else:  # so that several trials at once do not all try the same place
            sampler = samplers.TPESampler(seed=seed, constant_liar=True)
        aside = self.optuna.create_study(direction="minimize", sampler=sampler)
        aside.add_trials(trials)
        trial = aside.ask()
        _draw(trial, self.plan.space)
        return dict(trial.params)

    def reopen(self, number: int) -> OpenTrial:
        """An interrupted trial, with its parameters."""
        with self._stored():
            trial = self._study.get_trials(deepcopy=False)[number]
            return OpenTrial(self, self.optuna.trial.Trial(self._study, trial._trial_id))


class OpenTrial:
    """A running trial."""

    def __init__(self, study: Study, trial: Any) -> None:
        self.study, self._trial = study, trial
        self.number: int = trial.number
        self.params = _draw(trial, study.plan.space)
        self.ended = False
        frozen = study._study.get_trials(deepcopy=False)[self.number]
        self._reported: int = frozen.last_step or 0
        """The last reported epoch."""

    def report(self, losses: dict[int, float]) -> bool:
        """Whether the trial is pruned.

        `losses`: by epoch, from 1 on, of the epoch kept until then. Pruning is decided at its
        epochs, even if training is further.
        """
        for epoch, loss in sorted(losses.items()):
            if not self.ended and epoch > self._reported:
                self._report(epoch, loss)
        return self.ended

    def _report(self, epoch: int, loss: float) -> None:
        with self.study._stored():
            self._trial.report(loss, epoch)
            if epoch in self.study.rungs and self._trial.should_prune():
                self._tell("PRUNED")
        self._reported = epoch

    def complete(self, loss: float) -> None:
        """The trial is fully trained, with this validation loss of the kept epoch."""
        with self.study._stored():
            self._tell("COMPLETE", loss)

    def diverge(self) -> None:
        """The loss is not finite: a finished trial, worse than all others."""
        with self.study._stored():
            self._trial.set_user_attr(DIVERGED, True)
            self._tell("PRUNED")

    def _tell(self, state: str, value: float | None = None) -> None:
        self.study._study.tell(self._trial, value, self.study.optuna.trial.TrialState[state])
        self.ended = True


def _entry(trial: Any) -> Entry:
    ended = trial.state.is_finished()
    state = DIVERGED if ended and DIVERGED in trial.user_attrs else trial.state.name.lower()
    loss, given = trial.value if ended else None, GIVEN in trial.user_attrs
    return Entry(trial.number, state, dict(trial.params), loss, given)


def _draw(trial: Any, space: Space) -> dict[str, Any]:
    """The trial's value of each key, drawn if it has none."""
    params: dict[str, Any] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Choices):
            params[key] = trial.suggest_categorical(key, list(dimension.choices))
            continue
        kind, suggest = (
            (int, trial.suggest_int) if dimension.whole else (float, trial.suggest_float)
        )
        params[key] = suggest(key, kind(dimension.low), kind(dimension.high), log=dimension.log)
    return params
