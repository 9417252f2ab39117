"""What is drawn is the data, and the same data are the same bytes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure

from recsys_moe.lab.report import plots_comparison, plots_run
from recsys_moe.lab.report.comparison import Curves, RouterCurve, costs, seeds
from recsys_moe.lab.report.experts import ExpertLoad, Likeness, Sharpness
from recsys_moe.lab.report.genres import GenreBreakdown
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.plots import INK, render
from recsys_moe.lab.report.quality import ErrorBy, Reliability, Roc
from tests.lab.report.conftest import example_results

LOAD = ExpertLoad(
    rows=10,
    visits={"watch": [0.9, 0.1, 0.0], "rating": [0.2, 0.7, 0.1]},
    first={"watch": [0.8, 0.2, 0.0], "rating": [0.1, 0.9, 0.0]},
    weight={},
    either=[0.9, 0.7, 0.1],
    even={"watch": 1 / 3, "rating": 1 / 3},
    idle=[2],
    light=[],
)
CURVES = LearningCurves([1, 2, 3], [3, 2, 1], [3, 1, 2], {"watch AUC": [0.5, 0.7, 0.6]}, 2)
SHARP = Sharpness(
    rows=9,
    edges=[0, 0.5, 1.0],
    entropy={"watch": [0.25, 0.75]},
    mean={"watch": 0.6},
    mass={"watch": [0.7, 0.9, 1.0]},
    kept={"watch": 2},
    basis={"watch": "probabilities"},
)
POINTS = [0.0, 0.4, 1.0]


def lines(axes: object) -> list[list[float]]:
    return [list(map(float, line.get_ydata())) for line in axes.lines]  # type: ignore[attr-defined]


def legend(figure: Figure) -> list[str]:
    """Beside the axes, where it covers no curve."""
    (found,) = figure.legends
    assert all(axes.get_legend() is None for axes in figure.axes)
    return [text.get_text() for text in found.get_texts()]


def test_bars_are_the_visits_and_the_idle_expert_is_named_and_coloured() -> None:
    watch, rating = plots_run.load(LOAD).axes
    for task, axes in (("watch", watch), ("rating", rating)):
        assert [bar.get_width() for bar in axes.patches] == LOAD.visits[task]
        assert list(axes.lines[0].get_xdata()) == LOAD.first[task]
        assert axes.get_title(loc="left") == task
        assert [text.get_text().strip() for text in axes.texts] == ["idle"]
        colours = [bar.get_facecolor() for bar in axes.patches]
        assert colours[0] == colours[1] != colours[2]


def test_curves_are_drawn_by_epoch_with_the_best_one_named() -> None:
    loss, auc = plots_run.learning(CURVES).axes
    assert lines(loss)[:2] == [CURVES.train_loss, CURVES.val_loss]
    assert list(loss.lines[0].get_xdata()) == CURVES.epochs
    assert lines(auc)[0] == CURVES.metrics["watch AUC"]
    assert loss.get_title(loc="left") == "Loss (best: epoch 2)"
    figure = plots_run.learning(replace(CURVES, trained_by="watch 0.9, rating 0.1"))
    assert legend(figure) == ["training, of watch 0.9, rating 0.1", "validation"]


def test_a_first_epoch_that_would_flatten_the_others_is_left_out_and_said() -> None:
    """Later losses run from 1 to 2; with a tenth of that as margin from 0.9 to 2.1."""
    curves = LearningCurves([1, 2, 3], [9, 2, 1], [5, 1, 1.5], {"watch AUC": [0.5, 0.7, 0.6]}, 2)
    loss, auc = plots_run.learning(curves).axes
    assert loss.get_ylim() == pytest.approx((0.9, 2.1))
    assert [text.get_text() for text in loss.texts] == ["epoch 1 above: 9 and 5"]
    assert list(auc.texts) == []  # .5 to .7 is twice .6 to .7, not more
    assert auc.get_ylim()[0] < 0.5


def test_learned_factors_have_panels_of_their_own() -> None:
    factors = {"watch factor": [1.0, 1.2, 1.1], "rating factor": [1.0, 0.8, 0.9]}
    figure = plots_run.learning(replace(CURVES, factors=factors))
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert titles[-2:] == ["watch factor", "rating factor"]
    assert figure.axes[-1].lines[0].get_ydata().tolist() == [1.0, 0.8, 0.9]


def test_routers_whose_first_epoch_flattens_the_others_share_the_later_range() -> None:
    slow, quick = ([3, 0.5, 0.4], [0.45, 0.42, 0.38])
    drawn = [RouterCurve("a", [1, 2, 3], c, c, c, [1] * 3) for c in (slow, quick)]
    for axes in plots_comparison.learning(Curves(drawn)).axes[:2]:
        assert axes.get_ylim() == pytest.approx((0.368, 0.512))  # .38 to .5 and a tenth


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 7])
def test_no_label_or_title_is_cut_or_covered_whatever_the_tasks(tasks: int) -> None:
    names = [f"minutes_watched_{number}" for number in range(tasks)]
    shares = dict.fromkeys(names, [0.9, 0.1, 0.0])
    load = ExpertLoad(10, shares, shares, {}, [0.9, 0.1, 0.0], dict.fromkeys(names, 1 / 3), [2], [])
    basis = dict.fromkeys(names, "probabilities")
    mean, kept = dict.fromkeys(names, 0.6), dict.fromkeys(names, 2)
    bins = dict.fromkeys(names, [0.25, 0.75])
    sharp = Sharpness(9, [0, 0.5, 1.0], bins, mean, shares, kept, basis)
    metrics = {f"{name} MSE": [3000.0, 2.0, 1.0] for name in names}
    curves = LearningCurves([1, 2, 3], [3, 2, 1], [3, 1, 2], metrics, 2)
    for figure in (
        plots_run.load(load),
        plots_run.entropy(sharp),
        plots_run.mass(sharp),
        plots_run.learning(curves),
    ):
        figure.draw_without_rendering()
        assert len({axes.get_position().bounds for axes in figure.axes}) == len(figure.axes)
        texts = [axes.title if axes.title.get_text() else axes._left_title for axes in figure.axes]
        texts += [label for label in (figure._supxlabel, figure._supylabel) if label]
        boxes = [text.get_window_extent() for text in texts]
        for box in boxes:
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        for a, b in combinations(boxes, 2):
            assert not a.overlaps(b)


def test_entropy_and_mass() -> None:
    (axes,) = plots_run.entropy(SHARP).axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches]
    assert bars == [(0, 0.5, 0.25), (0.5, 0.5, 0.75)]
    (axes,) = plots_run.mass(SHARP).axes
    assert lines(axes) == [SHARP.mass["watch"], [0.9]]
    assert axes.get_title(loc="left") == "watch: 90.0% at k = 2"


def test_likeness_has_its_matrix_and_frames_the_twins() -> None:
    cosine: list[list[float | None]] = [[1, 0.97, None], [0.97, 1, None], [None, None, None]]
    (axes,) = plots_run.likeness(Likeness(5, cosine, [(0, 1, 0.97)], [2])).axes
    drawn = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert np.array_equal(drawn, np.array(cosine, dtype=float), equal_nan=True)
    frames = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines]
    assert frames == [(0, 1), (1, 0)]
    assert [text.get_text() for text in axes.texts] == ["1.00", "0.97", "0.97", "1.00"]


def test_consistency_and_chance() -> None:
    data = Consistency([2, 3], {"watch": [0.5, 0.9]}, {"watch": [0.3, 0.4]}, 10)
    assert lines(plots_run.consistency(data).axes[0])[:2] == [[0.5, 0.9], [0.3, 0.4]]


def test_roc_calibration_and_errors() -> None:
    figure = plots_run.roc(Roc("watch", 9, 4, 0.75, POINTS, [0.0, 0.8, 1.0]))
    assert lines(figure.axes[0])[0] == [0.0, 0.8, 1.0]
    assert legend(figure) == ["AUC 0.7500", "random"]
    raw = {"predicted": [0.1, 0.9], "observed": [0.2, 0.8], "rows": [3.0, 1.0]}
    (axes,) = plots_run.calibration(Reliability("watch", 4, {"raw": raw}, {"raw": 0.1})).axes
    assert lines(axes)[0] == [0.2, 0.8]
    sizes = axes.collections[0].get_sizes()
    assert (sizes[0] - 8) / (sizes[1] - 8) == pytest.approx(3)
    groups = ErrorBy(
        "rating", "RMSE", "user activity", [1, 5], [4, 5], [9, 9], [1.1, 0.9], [0.1] * 2
    )
    (axes,) = plots_run.error([groups]).axes
    assert lines(axes)[0] == [1.1, 0.9]
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == ["1-4", "5"]
    assert all(label.get_rotation() for label in labels)  # "1099-2341" beside its like
    (whiskers,) = axes.collections
    ends = [segment[:, 1].tolist() for segment in whiskers.get_segments()]
    assert ends == [pytest.approx([1.0, 1.2]), pytest.approx([0.8, 1.0])]  # value -+ 0.1


@pytest.mark.parametrize("epochs", [1, 2, 8])
def test_each_of_a_few_epochs_has_one_tick(epochs: int) -> None:
    steps, values = list(range(1, epochs + 1)), [0.5] * epochs
    curve = RouterCurve("topk", steps, values, values, values, [1] * epochs)
    figures = (
        plots_run.learning(LearningCurves(steps, values, values, {"watch AUC": values}, 1)),
        plots_comparison.learning(Curves([curve])),
    )
    for axes in (axes for figure in figures for axes in figure.axes):
        assert axes.get_xticks().tolist() == steps
        assert [label.get_text() for label in axes.get_xticklabels()] == list(map(str, steps))


def test_genres_are_coloured_by_log2_of_the_lift_and_carry_the_lift() -> None:
    lift: list[list[float | None]] = [[2.0, 0.0], [None, None]]
    data = GenreBreakdown("watch", ["A", "B"], [60, 50], [[1, 0], [0, 0]], [0.5, 0.5], lift)
    (axes,) = plots_run.genres(data).axes
    drawn = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert np.array_equal(drawn, [[1, -2], [np.nan, np.nan]], equal_nan=True)
    assert [text.get_text() for text in axes.texts] == ["2.0", "0.0"]


def test_curves_of_a_comparison_are_means_in_a_band_before_the_others() -> None:
    epochs, runs = [1, 2], [2, 2]
    first = RouterCurve("topk", epochs, [1.0, 0.5], [0.9, 0.4], [1.3, 0.8], runs)
    second = RouterCurve("softmax", epochs, [0.7, 0.6], [0.7, 0.6], [0.7, 0.6], runs)
    panels = plots_comparison.learning(Curves([first, second])).axes
    for axes, mine in zip(panels, (first, second), strict=True):
        assert lines(axes) == [first.mean, second.mean, mine.mean]
        (band,) = axes.collections
        heights = {y for _, y in band.get_paths()[0].vertices.tolist()}
        assert heights == {*mine.low, *mine.high}


def test_costs_and_seeds_of_a_comparison() -> None:
    results = example_results()
    data = costs(results.groups[0])
    (axes,) = plots_comparison.costs(data).axes
    assert lines(axes)[0] == data.loss
    assert sorted(text.get_text() for text in axes.texts) == sorted(data.router)
    found = seeds(results, results.groups[0], results.columns[0])
    (axes,) = plots_comparison.seeds(found).axes
    assert [list(line.get_xdata()) for line in axes.lines[1::2]] == [
        [0.30, 0.32],
        [0.39],
        [0.4, 0.42],
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found.values)


def test_the_same_data_give_the_same_bytes_without_a_date() -> None:
    first, second = (render("load", plots_run.load, LOAD) for _ in range(2))
    assert first == second
    assert not re.search(rb"20\d\d-\d\d-\d\d", first.svg)


def test_an_inline_figure_follows_the_theme_and_keeps_its_ids_to_itself() -> None:
    image = render("load", plots_run.load, LOAD)
    assert INK in image.svg.decode() and INK not in image.inline
    assert "var(--ink)" in image.inline and "var(--card)" in image.inline
    ids = set(re.findall(r' id="([^"]*)"', image.inline))
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', image.inline))
    assert all(name.startswith("load-") for name in ids)
    assert used and used <= ids
    assert "<metadata" not in image.inline and "<!--" not in image.inline
    assert re.match(r'<svg aria-hidden="true"[^>]* viewBox="', image.inline)


@pytest.mark.parametrize("name", ["$x$ \\frac{", "--><script>", "\u65e5\u672c"])
def test_odd_names_are_drawn_and_not_read(name: str) -> None:
    data = LearningCurves([1], [1], [1], {name: [0.5]}, 1)
    image = render("learning", plots_run.learning, data)
    assert "<script" not in image.inline
    assert name not in image.inline
