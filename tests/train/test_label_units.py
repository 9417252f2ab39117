"""The unit of a regression's labels: any that float32 can square; another is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.errors import DataError
from recsys_moe.train.fit import fit
from tests.train.test_warm_start import settings, table


@pytest.mark.parametrize("unit", [1e-40, 1e-16, 1e15, 1e37])
def test_labels_that_float32_cannot_square_are_the_fault_of_the_labels(
    unit: float, tmp_path: Path
) -> None:
    """Stars of 1 to 5 units: a standard deviation of 1.4 units, at most 5 units."""
    data, out = table(tmp_path / "a", unit=unit), tmp_path / "run"
    for biases in (True, False):
        with pytest.raises(DataError) as error:
            fit(settings(model={"biases": biases}), data, out)
        assert "rating" in str(error.value) and "optim.lr" not in str(error.value)
        assert f"{5 * unit:g}" in str(error.value) or unit < 1
        assert not out.exists()


def test_the_unit_of_labels_within_changes_nothing_but_the_unit(tmp_path: Path) -> None:
    """Powers of two, so that nothing is rounded; an MSE is in squared units."""
    found, once = [], settings(trainer={"max_epochs": 1})
    for number, unit in enumerate((1.0, 2.0**-46, 2.0**46)):
        data = table(tmp_path / str(number), unit=unit)
        result = fit(once, data, tmp_path / str(number) / "run")
        found.append(result["tasks"]["rating"]["mse"] / unit**2)
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-4)
