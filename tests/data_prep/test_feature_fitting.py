"""Vocabularies and scales come from the training rows alone, however these are cut."""

from __future__ import annotations

import functools
import operator
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep import table
from data_prep.features.fitting import LARGEST, Fitted, fit, mean_and_std, note
from data_prep.features.spec import READ, parse, wanted
from recsys_moe.schema import FeatureKind, Schema
from tests.data_prep.samples import columns, save

NUMBERS = st.floats(-LARGEST, LARGEST)
TEXTS = st.text("abc", min_size=1, max_size=2)
ENTITIES = 60
SAME_FOLDER = HealthCheck.function_scoped_fixture


def fitted(kind: FeatureKind, values: list[Any]) -> Fitted:
    return fit(wanted("item", "x", kind), note(pa.array(values, READ[kind])))


@given(st.lists(NUMBERS, min_size=1, max_size=30), st.data())
def test_sums_are_exact_in_any_order_and_cut(numbers: list[float], data: st.DataObject) -> None:
    mean, std = mean_and_std(note(pa.array(numbers)))
    assert mean == statistics.mean(numbers)  # by fractions too
    assert std == pytest.approx(statistics.pstdev(numbers) or 1, rel=1e-12)
    shuffled = data.draw(st.permutations(numbers))
    cut = data.draw(st.integers(0, len(numbers)))
    parts = [note(pa.array(part, pa.float64())) for part in (shuffled[:cut], shuffled[cut:])]
    assert mean_and_std(functools.reduce(operator.add, parts)) == (mean, std)


@pytest.mark.parametrize(
    ("spec", "column", "separator"),
    [
        ("g:multi=genres", "genres", "|"),
        ("g:multi=genres:sep=,", "genres", ","),
        ("g:multi=genres:sep='|'", "genres", "|"),
        ('g:multi=a = b:c:sep=", "', "a = b:c", ", "),
        ("g:multi=genres:sep='", "genres", "'"),
    ],
)
def test_a_separator_may_be_any_text_in_quotes_or_not(
    spec: str, column: str, separator: str
) -> None:
    (one,) = parse("item", [spec])
    assert (one.source, one.separator) == (column, separator)


def test_numbers_are_in_standard_deviations_and_finite() -> None:
    one = fitted("numeric", [1.0, 3.0, None])
    assert one.encode(pa.array([5.0, None, 1.0])).to_pylist() == [3.0, None, -1.0]
    tiny = fitted("numeric", [1e-40, 3e-40])
    assert tiny.encode(pa.array([LARGEST])).to_pylist() == [LARGEST]


def rows(hours: list[Any]) -> pd.DataFrame:
    """Every user and item has one row, so that each is in one split alone."""
    names = np.arange(ENTITIES)
    return pd.DataFrame({"who": names, "what": names, "clicked": names % 2, "hour": hours})


def prepare(folder: Path, features: pd.DataFrame, hours: list[Any]) -> Schema:
    files = {"user_features": features, "item_features": features}
    return table.prepare(
        folder / "o",
        input=save(rows(hours), folder / "log.parquet"),
        user="who",
        item="what",
        tasks=["watch:binary=clicked"],
        **{name: save(data, folder / f"{name}.parquet") for name, data in files.items()},
        user_feature=["u_cat:categorical=cat", "u_num:numeric=num"],
        item_feature=["i_cats:multi=cats", "i_num:numeric=num"],
        context=["hour:numeric=hour"],
        protocol="hash",
        force=True,
    )


def features(values: list[tuple[Any, Any]]) -> pd.DataFrame:
    names = np.arange(ENTITIES)
    cats, numbers = zip(*values, strict=True)
    data = {"who": names, "what": names, "cat": cats, "cats": cats, "num": numbers}
    return pd.DataFrame(data).astype({"cat": "string", "cats": "string", "num": "float64"})


def trained(folder: Path) -> list[int]:
    """Users, and so items, of the training rows."""
    return sorted(columns(folder / "o", "train")["user_index"])  # type: ignore[type-var]


@given(st.data())
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_not_in_training_changes_no_vocabulary_and_no_scale(
    tmp_path: Path, data: st.DataObject
) -> None:
    base = [(f"{'xyz'[n % 3]}", n % 7 + 0.1) for n in range(ENTITIES)]
    hours = [float(n % 24) for n in range(ENTITIES)]
    schema = prepare(tmp_path, features(base), hours)
    known = trained(tmp_path)
    assert ENTITIES > len(known) > 30
    before = {n: pq.read_table(tmp_path / "o" / f"{n}.parquet") for n in ("features", "users")}
    others = [n for n in range(ENTITIES) if n not in known]
    cell = st.tuples(st.none() | TEXTS, st.none() | NUMBERS)
    for n in others:
        base[n], hours[n] = data.draw(cell), data.draw(NUMBERS)
    again = prepare(tmp_path, features(base), hours)
    assert trained(tmp_path) == known
    assert [again.user_features, again.item_features, again.context_features] == [
        schema.user_features, schema.item_features, schema.context_features
    ]  # fmt: skip
    assert pq.read_table(tmp_path / "o" / "features.parquet").equals(before["features"])
    users, items = (columns(tmp_path / "o", entity) for entity in ("users", "items"))
    assert pa.table(users).take(known).equals(pa.table(before["users"].to_pydict()).take(known))
    for n in others:  # "xyz" are known, "abc" are not: a category of their own, number 3
        new = None if base[n][0] is None else 3
        assert users["feature:u_cat"][n] == new
        assert items["feature:i_cats"][n] == (None if new is None else [new])
