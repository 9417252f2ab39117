"""Pages of research/results are what their CSV files give; the arithmetic of their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from research import results_plot, results_rows, results_table
from tests.conftest import tells

HEADER = (
    "run,label,weight.watch,weight.rating,seed,router,visits,best_epoch,epochs,loss,watch.auc,"
    "rating.mse,experts_training,experts_inference,seconds_per_epoch,data,losses,split,paper\n"
)
RUNS = HEADER + "".join(
    f"{label}-0.9_0.1-seed{seed},{label},0.9,0.1,{seed},{router},{visits},{best},5,{loss},0.9,0.8,"
    f"{experts},{experts},{seconds},movielens-1m,absolute,test,movielens-1m\n"
    for label, router, visits, seed, best, loss, experts, seconds in [
        ("dense", "softmax", "dense", 0, 2, 0.40, 16.0, 100.0),
        ("dense", "softmax", "dense", 1, 3, 0.42, 16.0, 140.0),
        ("topk", "topk", "2", 0, 4, 0.43, 4.0, 60.0),
        ("topk", "topk", "2", 1, 4, 0.45, 4.0, 60.0),
        ("cured", "moesart", "2", 0, 5, 0.42, 4.0, 50.0),
        ("cured", "moesart", "2", 1, 5, 0.42, 4.0, 50.0),
    ]
)
LOSSES = {
    "dense-0.9_0.1-seed0": [0.50, 0.41, 0.43],
    "dense-0.9_0.1-seed1": [0.50, 0.42, 0.41],
    "topk-0.9_0.1-seed0": [0.50, 0.45, 0.44, 0.41],
    "topk-0.9_0.1-seed1": [0.50, 0.46, 0.45, 0.44],
    "cured-0.9_0.1-seed0": [0.50, 0.49, 0.48, 0.47],
    "cured-0.9_0.1-seed1": [0.50, 0.49, 0.48, 0.47],
}
EPOCHS = "run,label,epoch,seconds,train.loss,val.loss\n" + "".join(
    f"{run},{run.partition('-')[0]},{epoch},60.0,0.4,{loss}\n"
    for run, losses in LOSSES.items()
    for epoch, loss in enumerate(losses, 1)
)
PAGE = "# Title\n\n<!-- table -->\n<!-- /table -->\n\nRead from it.\n"


class Place:
    """A page and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page, self.runs, self.epochs = (folder / n for n in ("p.md", "r.csv", "e.csv"))
        self.page.write_text(PAGE)
        self.runs.write_text(RUNS)
        self.epochs.write_text(EPOCHS)

    def make(self, *words: object, runs: tuple[Path, ...] = ()) -> int:
        """The exit code."""
        files = [*(runs or [self.runs]), "--epochs", self.epochs, "--write", self.page]
        return self.main(*files, "--reach", "0.9,0.1=0.41", *words)

    def main(self, *words: object) -> int:
        with pytest.raises(SystemExit) as end:
            results_table.main([str(word) for word in words])
        assert isinstance(end.value.code, int)
        return end.value.code

    def cells(self, router: str) -> dict[str, str]:
        lines = [line for line in self.page.read_text().splitlines() if line.startswith("| ")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        (row,) = (row for row in rows if row[0] == f"`{router}`")
        return dict(zip(rows[0], row, strict=True))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_every_page_of_results_is_what_its_files_give() -> None:
    with pytest.raises(SystemExit) as end:
        results_table.main(["--check"])
    assert end.value.code == 0


def test_the_numbers_of_a_table_are_those_of_the_runs(place: Place) -> None:
    assert place.make() == 0
    dense, topk, cured = (place.cells(router) for router in ("dense", "topk", "cured"))
    # (0.40 + 0.42) / 2; of two values the standard error is half their distance
    assert (dense["loss"], dense["seeds"], dense["best epoch"]) == ("0.4100 +- 0.0100", "2", "2.5")
    assert dense["s/epoch"] == "120"  # the median of 100 and 140
    # Seeds reach 0.41 in epochs 2 and 3: 2.5 x 120 s are 5 minutes; of topk one does, in epoch 4.
    assert (dense["epochs to 0.41"], dense["minutes"]) == ("2.5", "5")
    assert (topk["epochs to 0.41"], topk["minutes"]) == ("4.0 (1 of 2)", "4")
    assert (cured["epochs to 0.41"], cured["minutes"]) == ("never", "-")
    # 0.03 / sqrt(0.01^2 + 0.01^2) = 2.12; cured does not vary: 0.01 / 0.01 and 0.02 / 0.01
    assert topk["above the best"] == "+0.0300 (2.1)"
    assert cured["above the best"] == "+0.0100 (1.0)"
    assert topk["above the best k-sparse"] == "+0.0200 (2.0)"
    assert (cured["above the best k-sparse"], dense["above the best k-sparse"][:7]) == (
        "-",
        "-0.0100",
    )
    # Table 1 of the paper, by the router behind the label
    papers = [row["paper: loss, watch AUC, rating MSE"] for row in (dense, topk, cured)]
    assert papers[::2] == ["0.4193, 0.9106, 0.7569", "0.4089, 0.9161, 0.7430"]


def test_the_best_k_sparse_router_is_tested_against_the_others(place: Place) -> None:
    place.make()
    # Welch: t = 0.02 / 0.01 with one degree of freedom, as cured does not vary:
    # p = 1/2 - atan(2) / pi = 0.148
    assert "- loss: `cured` is the best k-sparse one; p `topk` 0.15." in place.page.read_text()


def test_the_lowest_loss_stands_first_and_what_is_around_the_markers_stays(place: Place) -> None:
    place.make()
    text = place.page.read_text()
    assert text.index("`dense` |") < text.index("`cured` |") < text.index("`topk` |")
    assert text.startswith("# Title\n\n<!-- table -->\nTask weights watch 0.9, rating 0.1, ")
    assert text.endswith("<!-- /table -->\n\nRead from it.\n")
    assert max(len(line) for line in text.splitlines() if line[:1] not in ("|", " ")) <= 120


def test_a_page_without_markers_is_refused_and_stays(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.page.write_text("# Title\n")
    assert place.make() == 2
    assert "<!-- table -->" in capsys.readouterr().err
    assert place.page.read_text() == "# Title\n"


def test_check_finds_a_page_that_is_not_what_its_files_give(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.make("--check") == 1 and place.page.read_text() == PAGE
    assert place.make() == 0
    assert place.make("--check") == 0
    place.runs.write_text(RUNS.replace(",0.43,", ",0.44,"))
    assert place.make("--check") == 1
    assert tells(capsys.readouterr().err, f"{place.page} ... CSV")


def test_a_filled_page_is_made_anew_by_the_command_that_it_shows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_table, "PAGES", place.folder)
    assert place.main() == 2  # it does not show one yet
    place.make("--plot", place.folder / "p.svg")
    assert place.main("--check") == 0
    place.runs.write_text(RUNS.replace(",0.43,", ",0.44,"))
    assert (place.main("--check"), place.main(), place.main("--check")) == (1, 0, 0)
    assert place.cells("topk")["loss"] == "0.4450 +- 0.0050"  # of 0.44 and 0.45
    (place.folder / "p.svg").unlink()
    assert place.main("--check") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((",0.43,", ",0.44,"), "topk-0.9_0.1-seed0 differs: loss is 0.43 in"),
        (("movielens-1m,abs", "books,abs"), "different data (books, movielens-1m)"),
        (("absolute", "relative"), "different losses (absolute, relative)"),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    place: Place, change: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = place.folder / "other.csv"
    text = RUNS.replace(*change)
    is_other_run = "different" in words
    other.write_text(text.replace("-seed", "-seed1") if is_other_run else text)
    assert place.make(runs=(place.runs, other)) == 2
    assert words in capsys.readouterr().err
    assert place.page.read_text() == PAGE


def test_the_figure_shows_the_mean_of_the_epochs_that_all_seeds_have(place: Place) -> None:
    rows, plot = results_rows, results_plot
    place.epochs.write_text(EPOCHS.replace("topk-0.9_0.1-seed1,topk,4,60.0,0.4,0.44\n", ""))
    (group,) = rows.read_groups([place.runs], [place.epochs])
    curves = {router.label: plot.curve_of(router) for router in group.routers}
    assert curves["topk"].mean == pytest.approx([0.50, 0.455, 0.445])  # seed 1 has no epoch 4
    assert curves["topk"].minutes == 1 and curves["dense"].minutes == 2  # 60 and 120 s
    assert curves["dense"].is_dense and not curves["cured"].is_dense
    figure = plot.figure_of([plot.Panels(group.title, list(curves.values()), 0.41)])
    by_epoch, by_minute = figure.axes
    dashed = [line for line in by_epoch.lines if line.get_linestyle() == "--"]
    assert len(dashed) == 3  # two seeds and their mean
    assert {text.get_text() for text in by_epoch.texts} == {"dense", "topk", "cured", "0.41"}
    ends = {line.get_xdata()[-1] for line in by_minute.lines if line.get_linestyle() == "--"}
    assert ends == {6.0}  # three epochs of 2 minutes


def test_the_figure_is_an_svg_and_needs_epochs(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = place.folder / "images" / "p.svg"
    assert place.make("--plot", picture) == 0
    assert "<svg" in picture.read_text()
    assert "](images/p.svg)" in place.page.read_text()
    assert place.main(place.runs, "--write", place.page, "--plot", picture) == 2
    assert "no run has epochs" in capsys.readouterr().err
