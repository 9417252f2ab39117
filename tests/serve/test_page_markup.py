"""A stranger's model whose every name and value would like to be markup, in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys_moe.schema import Schema
from tests.serve.browsing import Page
from tests.serve.conftest import Threaded, sealed, threaded

KEPT = Path(__file__).parents[1] / "formats" / "0.1" / "features" / "run" / "model"
MARKUP = "<img src=x onerror='window.broken=1'><script>window.broken=1</script><b>"
WAYS = [MARKUP, f'"{MARKUP}', f"</li>{MARKUP}", "{{7*7}}${7*7}", "javascript:window.broken=1"]


def rewritten(path: Path, **columns: list[str]) -> None:
    table = pq.read_table(path)
    kept = [name for name in table.column_names if name not in columns]
    table = table.select(kept)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    folder = Path(shutil.copytree(KEPT, tmp_path_factory.mktemp("markup") / "model"))
    size, name = Schema.load(folder).item.size, f"{MARKUP}_column"
    values = [f"{WAYS[row % len(WAYS)]} {row}" for row in range(size)]
    rewritten(folder / "items.parquet", **{"title": values, name: values})
    rows = pq.read_table(folder / "features.parquet").num_rows
    rewritten(folder / "features.parquet", value=[f"{MARKUP}{row}" for row in range(rows)])
    trait = f"{MARKUP}trait"
    schema = json.loads((folder / "schema.json").read_text())
    schema["user_features"][0]["name"] = trait
    (folder / "schema.json").write_text(json.dumps(schema))
    users = pq.read_table(folder / "users.parquet")
    names = [f"feature:{trait}" if n == "feature:age" else n for n in users.column_names]
    pq.write_table(users.rename_columns(names), folder / "users.parquet")
    for file in ("items.parquet", "users.parquet", "features.parquet", "schema.json"):
        sealed(folder, file)
    with threaded(folder) as found:
        yield found


def injected(page: Page) -> list[Any]:
    """Elements that only the data could have made, and what their scripts would leave behind."""
    found = page.find("main img, main script, #items b, datalist b, label b, h3 b, body > img")
    left = page.browser.execute_script("return [window.broken ?? null, document.title]")
    return [*found, *left]


def test_no_name_and_no_value_of_a_model_becomes_markup(browser: Any, server: Threaded) -> None:
    page = Page(browser, server)
    page.ask("1")
    assert injected(page) == [None, "recsys-moe"]
    text = page.browser.find_element("tag name", "main").text
    assert MARKUP in text and "{{7*7}}${7*7}" in text  # as they are written
    assert page.find("a[href^=javascript]") == []


def test_what_is_typed_becomes_no_markup_either(browser: Any, server: Threaded) -> None:
    page = Page(browser, server)
    page.ask(MARKUP)
    assert injected(page) == [None, "recsys-moe"]
    assert MARKUP in page.text("notice")
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert [one for one in complaints if "model - Failed to load" not in one] == []
