"""Context features for prepared data of any kind."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recsys_moe.schema import SCHEMA_FILE, SPLITS, FeatureColumn, Schema

HOUR = FeatureColumn(name="hour", kind="categorical", size=4)
PRICE = FeatureColumn(name="price", kind="numeric", mean=10.0, std=2.0)
CONTEXT = (HOUR, PRICE)


def with_context(prepared: Path, folder: Path, rows_per_group: int = 100) -> Path:
    """A copy whose rows have the context of `expected`; hours are named 0h to 3h."""
    shutil.copytree(prepared, folder)
    schema = replace(Schema.load(prepared), context_features=CONTEXT)
    (folder / SCHEMA_FILE).write_text(schema.to_json())
    for part in (part for split in SPLITS for part in (folder / split).glob("*.parquet")):
        table = pq.read_table(part)
        user, item = (torch.tensor(table[f"{one}_index"].to_numpy()) for one in ("user", "item"))
        hour, price = expected(user, item).numpy().T
        index = pa.array(np.nan_to_num(hour).astype(np.int32), mask=np.isnan(hour))
        table = table.append_column(HOUR.column, index)
        table = table.append_column(PRICE.column, pa.array(price, mask=np.isnan(price)))
        pq.write_table(table, part, row_group_size=rows_per_group)
    names = pd.DataFrame({"side": "context", "feature": "hour", "index": np.arange(4, dtype="i4")})
    names["value"] = [f"{n}h" for n in range(4)]
    if (folder / "features.parquet").is_file():
        names = pd.concat([pd.read_parquet(folder / "features.parquet"), names])
    names.astype({"index": "i4"}).to_parquet(folder / "features.parquet", index=False)
    return folder


def raw(context_NC: Tensor) -> list[dict[str, object]]:
    """What users would say of such contexts; 9h is unknown in training."""
    hours = ["0h", "1h", "2h", "3h", "9h"]
    return [
        {
            "hour": None if hour != hour else hours[int(hour)],
            "price": None if price != price else PRICE.mean + PRICE.std * price,
        }
        for hour, price in context_NC.tolist()
    ]


def expected(user_N: Tensor, item_N: Tensor) -> Tensor:
    """(N, 2): the hour follows the sum of both, 4 is unknown, and none of 5; prices the item, with
    none for item 3."""
    hour_N = (user_N + item_N).float() % 6
    price_N = item_N.float() / 10 - 1
    return torch.stack(
        [hour_N.masked_fill(hour_N == 5, torch.nan), price_N.masked_fill(item_N == 3, torch.nan)], 1
    )
