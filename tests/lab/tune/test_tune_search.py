"""Every trial runs once, whatever happens; the seed decides what is drawn; the hopeless are cut."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import Interrupted, RunError
from recsys_moe.lab.jobs.executor import Job, Outcome
from recsys_moe.lab.tune.plan import make_plan
from recsys_moe.lab.tune.run import tune
from recsys_moe.lab.tune.study import Study, rungs
from recsys_moe.train.finite import refuse
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.lab.tune.tune_pretend import (
    ASKED,
    TRAINER,
    Pretend,
    bowl,
    drawn,
    in_memory,
    longer,
    trials,
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch)


# Nothing twice, nothing lost


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("sampler", "count", "stops"),
    [("random", 4, ("0001", "0003")), ("tpe", 13, ("0011",))],  # tpe's first ten are random
)
def test_the_seed_alone_decides_what_is_drawn_however_often_it_is_interrupted(
    prepared: Path, tmp_path: Path, sampler: str, count: int, stops: tuple[str, ...]
) -> None:
    request = replace(ASKED, trials=count, sampler=sampler)
    tune(request, prepared, tmp_path / "straight", executor=Pretend())
    for stop in stops:
        with pytest.raises(Interrupted, match="trials are finished"):
            tune(request, prepared, tmp_path / "parts", executor=Pretend(stops_at=stop))
    tune(request, prepared, tmp_path / "parts", executor=Pretend())
    assert drawn(tmp_path / "parts") == drawn(tmp_path / "straight")
    assert len({trial["optim.lr"] for trial in drawn(tmp_path / "parts")}) == count
    seeded = parse_config({"model": TINY_MODEL, "trainer": {**TRAINER, "seed": 1}})
    other = replace(request, config=seeded, trials=2)
    tune(other, prepared, tmp_path / "other", executor=Pretend())
    assert drawn(tmp_path / "other")[1] != drawn(tmp_path / "straight")[1]


@pytest.mark.usefixtures("quick")
def test_tpe_tries_no_settings_twice_and_ends_where_there_are_no_others(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """2 values of k times 3 of the penalty times 2 whole numbers: 12, whatever --trials asks."""
    space = {
        "model.router.k": {"choices": [2, 3]},
        "penalties.trimmed_lasso": {"choices": [0.0, 0.1, 1.0]},
        "model.expert_dim": {"low": 15, "high": 16},
    }
    more = {"space": space, "fixed": ("optim.lr",), "sampler": "tpe", "pruner": "none"}
    out = tmp_path / "out"
    tune(replace(ASKED, trials=5, **more), prepared, out, executor=Pretend())
    assert not caplog.records
    tune(replace(ASKED, trials=20, **more), prepared, out, executor=Pretend())
    settings = [tuple(params.values()) for params in drawn(out)]
    assert len(settings) == len(set(settings)) == 12
    assert "--trials 20" in caplog.text and "12" in caplog.text


@pytest.mark.usefixtures("quick")
def test_an_interruption_says_how_to_go_on_and_keeps_the_parameters(
    prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Interrupted, match="1 of 3 trials are finished.*same command") as caught:
        tune(ASKED, prepared, out, executor=Pretend(stops_at="0001"))
    assert caught.value.exit_code == 130
    asked = (out / "configs" / "0001.yaml").read_text()
    executor = Pretend()
    tune(ASKED, prepared, out, executor=executor)
    assert executor.ran == ["fit 0001", "fit 0002"]
    assert (out / "configs" / "0001.yaml").read_text() == asked


@pytest.mark.usefixtures("quick")
def test_more_trials_and_test_evaluations_are_added(prepared: Path, tmp_path: Path) -> None:
    out, executor = tmp_path / "out", Pretend()
    tune(replace(ASKED, trials=2), prepared, out, executor=executor)
    assert [trial["test"] for trial in trials(out)] == [None, None]
    tune(replace(ASKED, trials=3, evaluate_test=True), prepared, out, executor=executor)
    assert executor.ran[2:] == [
        "evaluate test of 0000", "evaluate test of 0001", "fit 0002", "evaluate 0002",
    ]  # fmt: skip
    tune(replace(ASKED, trials=1), prepared, out, executor=executor)
    assert len(executor.ran) == 6 and len(trials(out)) == 3


@pytest.mark.usefixtures("quick")
def test_a_failed_trial_is_named_and_tried_again_with_its_parameters(
    prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = tune(ASKED, prepared, out, executor=Pretend(fails="0001", says="error: no room"))
    with pytest.raises(RunError, match=r"1 of the trials failed: 0001 \(exit 1, log .*0001.log"):
        found.check()
    assert [trial["state"] for trial in trials(out)] == ["complete", "running", "complete"]
    before, executor = drawn(out), Pretend()
    tune(ASKED, prepared, out, executor=executor).check()
    assert executor.ran == ["fit 0001"] and drawn(out) == before


def _of_a_loss() -> None:
    module: Any = SimpleNamespace(global_step=3)
    RecModule._check_finite(module, -float("inf"), "validation")


@pytest.mark.parametrize(
    "fail",
    [
        _of_a_loss,
        lambda: refuse("model.moe.experts.kernel_EDH", 3),
        lambda: refuse("the state of the optimizer", 3),
    ],
    ids=["loss", "weight", "optimizer"],
)
@pytest.mark.usefixtures("quick")
def test_what_is_no_number_ends_the_trial_and_not_the_study(
    prepared: Path, tmp_path: Path, fail: Callable[[], None]
) -> None:
    with pytest.raises(RunError) as caught:
        fail()
    executor = Pretend(fails="0000", says=f"error: {caught.value}")
    request = replace(ASKED, sampler="tpe", pruner="none")
    tune(request, prepared, tmp_path / "out", executor=executor).check()
    found = trials(tmp_path / "out")
    assert [trial["state"] for trial in found] == ["diverged", "complete", "complete"]
    assert found[0]["loss"] is None
    again = Pretend()
    tune(request, prepared, tmp_path / "out", executor=again)
    assert again.ran == []


@pytest.mark.usefixtures("quick")
def test_only_the_last_attempt_tells_whether_a_trial_diverged(
    prepared: Path, tmp_path: Path
) -> None:
    said = "error: training loss became nan by step 3\n\n$ fit\nerror: no room"
    request = replace(ASKED, trials=1)
    found = tune(request, prepared, tmp_path / "out", executor=Pretend(fails="0000", says=said))
    assert [trial["state"] for trial in trials(tmp_path / "out")] == ["running"]
    assert len(found.failures) == 1


@pytest.mark.usefixtures("quick")
def test_a_failed_test_evaluation_is_a_failure_and_tried_again(
    prepared: Path, tmp_path: Path
) -> None:
    class Untested(Pretend):
        def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
            for outcome in super().run(replace(job, steps=job.steps[:1]) for job in jobs):
                yield Outcome(outcome.job, 1, 2)

    out, request = tmp_path / "out", replace(ASKED, trials=2, evaluate_test=True)
    with pytest.raises(RunError, match="2 of the trials failed: 0000 .exit 1, log .*same command"):
        tune(request, prepared, out, executor=Untested()).check()
    assert [trial["state"] for trial in trials(out)] == ["complete"] * 2
    executor = Pretend()
    tune(request, prepared, out, executor=executor).check()
    assert executor.ran == ["evaluate test of 0000", "evaluate test of 0001"]
    assert all(trial["test"] for trial in trials(out))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_kill_while_a_trial_draws_changes_nothing_of_what_it_draws(
    prepared: Path, tmp_path: Path, sampler: str
) -> None:
    """Between the draw and the queue, between the queue and the start, and after the start."""
    asked = longer(16, sampler=sampler)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, killed = (opened(asked, prepared, tmp_path / name) for name in ("a", "b"))
    params = [whole.ask().params for _ in range(3)]
    killed._study.ask()  # the given one, which has no parameters of its own yet
    assert killed.reopen(0).params == params[0]
    killed._study.enqueue_trial(killed._drawn(killed._study.get_trials()))
    assert killed.ask().params == params[1]
    killed._study.enqueue_trial(killed._drawn(killed._study.get_trials()))
    killed._study.ask()
    assert killed.reopen(2).params == params[2]
    assert len(killed.entries()) == 3


def opened(request: Any, data: Path, out: Path) -> Study:
    return Study(make_plan(request, data, "study.db"), out, None)


# Pruning


@pytest.mark.usefixtures("quick")
def test_a_trial_is_judged_by_the_loss_of_the_epoch_it_keeps_so_far(
    prepared: Path, tmp_path: Path
) -> None:
    study = opened(longer(16, pruner="asha"), prepared, tmp_path)
    assert study.rungs == [1, 4]
    assert not study.ask().report(dict.fromkeys(range(1, 5), 1.0))
    assert not study.ask().report({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5})  # 0.5 < 1 at both
    assert study.ask().report({1: 0.4, 2: 0.4, 3: 0.4, 4: 0.1, 5: 0.1}) is False
    assert study.ask().report({1: 0.7})


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("last_words", ["should_prune", "tell"], ids=["before it", "half-way"])
def test_a_kill_in_the_middle_of_a_cut_loses_that_one_decision_and_no_trial(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_words: str
) -> None:
    import optuna

    study = opened(longer(16, pruner="asha"), prepared, tmp_path)
    for number in range(6):  # of seven trials the best alone goes on: 7 // 4 = 1
        study.ask().report({epoch: 1.0 + number for epoch in range(1, 5)})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        owner = optuna.trial.Trial if last_words == "should_prune" else optuna.study.Study
        patch.setattr(owner, last_words, killed)
        with pytest.raises(KeyboardInterrupt):
            study.ask().report({1: 1.5})  # second of seven
    assert study.entries()[6].state == "running"
    losses = {1: 1.5, 2: 1.4, 3: 1.4}
    assert not study.reopen(6).report(losses)  # goes on
    assert study.reopen(6).report({**losses, 4: 1.4})  # and is cut at the next rung
    assert study.entries()[6].state == "pruned"


@pytest.mark.usefixtures("quick")
def test_what_was_let_go_on_is_not_judged_again(prepared: Path, tmp_path: Path) -> None:
    study = opened(longer(16, pruner="asha"), prepared, tmp_path)
    assert not study.ask().report({1: 1.0})
    study.ask().report({1: 0.5})  # overtakes it
    assert not study.reopen(0).report({1: 1.0, 2: 0.9})


def test_trials_are_cut_at_a_sixteenth_and_a_quarter_of_the_epochs() -> None:
    assert rungs(100) == [6, 24] and rungs(16) == [1, 4]
    assert rungs(4) == [1] and rungs(1) == []  # never at the end


@pytest.mark.usefixtures("quick")
def test_a_trial_behind_the_best_is_cut_and_counts_as_finished(
    prepared: Path, tmp_path: Path
) -> None:
    request = longer(16, trials=8, pruner="asha")
    tune(request, prepared, tmp_path / "out", executor=Pretend())
    found = trials(tmp_path / "out")
    assert found[0]["state"] == "complete" and found[0]["epochs"] == 16
    best = float("inf")
    for trial in found[:4]:  # of the first few the best so far goes on, and no other one
        loss = bowl({"optim": {"lr": trial["params"]["optim.lr"]}}, 1)
        assert (trial["state"] == "complete") == (loss < best)
        assert trial["epochs"] == (16 if loss < best else 1)
        assert trial["state"] == "complete" or trial["loss"] == loss
        best = min(best, loss)
    cut = [trial for trial in found if trial["state"] == "pruned"]
    assert cut and all(trial["epochs"] in (1, 4) for trial in cut)
    executor = Pretend()
    tune(request, prepared, tmp_path / "out", executor=executor)
    assert executor.ran == [] and trials(tmp_path / "out") == found


@pytest.mark.usefixtures("quick")
def test_a_cut_is_decided_at_its_epoch_even_where_training_was_faster(
    prepared: Path, tmp_path: Path
) -> None:
    class Fast(Pretend):
        def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
            return super().run(replace(job, ends_early=lambda: False) for job in jobs)

    request = longer(16, trials=8, pruner="asha", evaluate_test=True)
    for name, executor in (("watched", Pretend()), ("fast", Fast())):
        tune(request, prepared, tmp_path / name, executor=executor)
    states = [
        [(trial["state"], trial["loss"], trial["test"]) for trial in trials(tmp_path / name)]
        for name in ("watched", "fast")
    ]
    assert states[0] == states[1] and {"pruned", "complete"} == {state for state, *_ in states[0]}
