"""Details of the page: items, users, filters, metrics, experts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys_moe.artifact.idle import IDLE_WORDS
from tests.serve.browsing import By, Keys, Page
from tests.serve.conftest import Threaded, sealed, threaded

SPARED, IDLE = 1, 2
"""Experts: one that only watch spares, one that both tasks spare."""


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    """Items of 1990 to 1999, every second title with its year; ratings without a valid range."""
    folder = Path(shutil.copytree(run / "model", tmp_path_factory.mktemp("page") / "model"))
    table = pq.read_table(folder / "items.parquet").select(["item", "item_index", "genres"])
    years = [1990 + row % 10 for row in range(len(table))]
    titles = [f"Film {row}" + f" ({year})" * (row % 2) for row, year in enumerate(years)]
    table = table.append_column("title", pa.array(titles)).append_column("year", pa.array(years))
    pq.write_table(table, folder / "items.parquet")
    schema = json.loads((folder / "schema.json").read_text())
    schema["tasks"][1] |= {"low": None, "high": None}
    schema["labels"]["train"]["rating"] |= {"min": 1.0, "max": 4.5}
    (folder / "schema.json").write_text(json.dumps(schema))
    card = json.loads((folder / "card.json").read_text())
    watch, rating = card["val"]["routing"].values()
    # An even share of 4 is .25: a tenth of it and less is spared.
    watch["load"], rating["load"] = [0.655, 0.02, 0.025, 0.3], [0.475, 0.5, 0.025, 0.0]
    (folder / "card.json").write_text(json.dumps(card))
    for name in ("items.parquet", "schema.json", "card.json"):
        sealed(folder, name)
    with threaded(folder) as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Threaded) -> Page:
    return Page(browser, server)


def test_an_item_has_its_genres_and_a_year_that_is_not_said_twice(
    page: Page, server: Threaded
) -> None:
    page.ask("7")
    body = {"users": [7], "exclude_seen": True, "columns": ["genres"]}
    (ranking,) = server.client.post("/recommend", json=body).json()["rankings"]
    for row, entry in zip(page.rows(), ranking["items"], strict=True):
        number = entry["item"] - 1  # of its row
        year = [] if number % 2 else [str(1990 + number % 10)]
        words = row.find_element(By.CSS_SELECTOR, "p.quiet").text.split(" \u00b7 ")
        assert words == [entry["columns"]["genres"], *year, f"item {entry['item']}"]


def test_the_positives_of_the_user_are_shown(page: Page, server: Threaded) -> None:
    page.ask("7")
    seen = server.client.post("/seen", json={"user": 7}).json()
    said = f"User 7 interacted with {seen['total']} items in training"
    assert page.text("positives-title").startswith(said)
    page.browser.find_element(By.ID, "positives-title").click()
    lines = [line.text for line in page.find("#positives-items b")]
    assert lines == [item["title"] for item in seen["items"]]
    page.find("#user")[0].click()
    page.ask("nobody at all")
    assert page.text("positives-title") == ""


def test_similar_items_come_on_request_and_go_again(page: Page, server: Threaded) -> None:
    page.ask("7")
    row = page.rows()[0]
    ask = row.find_element(By.CSS_SELECTOR, "button")
    ask.send_keys(Keys.ENTER)
    page.wait(lambda: row.find_elements(By.CSS_SELECTOR, ".near li"))
    body = {"item": row.get_attribute("data-item"), "k": 5}
    near = server.client.post("/similar", json=body).json()["items"]
    lines = [line.text for line in row.find_elements(By.CSS_SELECTOR, ".near li")]
    for line, one in zip(lines, near, strict=True):
        assert line.startswith(one["title"])
        assert line.endswith(f"{one['scores']['cosine']:.2f}")
    assert ask.get_attribute("aria-expanded") == "true"
    ask.send_keys(Keys.ENTER)
    assert not row.find_element(By.CSS_SELECTOR, ".near").is_displayed()


def shown_items(page: Page) -> list[int]:
    script = "return [...document.querySelectorAll('#items > li')].map((row) => row.dataset.item)"
    return [int(item) for item in page.browser.execute_script(script)]


def test_filters_are_those_of_the_api_and_can_be_taken_away(page: Page) -> None:
    page.ask("7")
    page.find("#asking summary")[0].click()
    assert page.find("#column")[0].get_attribute("value") == "genres"  # it offers its values
    assert len(page.find("#values option")) == 4
    page.find("#column option[value=year]")[0].click()
    page.find("#operator option[value='>=']")[0].click()
    page.find("#value")[0].send_keys("1998", Keys.ENTER)
    page.wait(lambda: {(item - 1) % 10 for item in shown_items(page)} <= {8, 9})
    assert page.text("filter-count") == "(1)"
    page.find("#candidates")[0].send_keys("9, 10, 11", Keys.ENTER)
    page.wait(lambda: set(shown_items(page)) <= {9, 10})
    page.find("#conditions button")[0].send_keys(Keys.ENTER)
    page.wait(lambda: page.text("filter-count") == "" and set(shown_items(page)) <= {9, 10, 11})
    page.find("#value")[0].send_keys("soon", Keys.ENTER)
    page.wait(lambda: "'soon' is not a number" in page.text("error"))


def test_the_metrics_are_those_of_the_card(page: Page, server: Threaded) -> None:
    page.wait(lambda: page.focused() == "user")
    card = server.client.get("/model").json()["metrics"]["val"]
    tasks = card["tasks"]
    for panel, (name, metrics) in zip(page.find("#metric-tasks > *"), tasks.items(), strict=True):
        assert panel.find_element(By.TAG_NAME, "h3").text == name
        tiles = panel.find_elements(By.CSS_SELECTOR, ".tiles > *")
        lines = [tile.text.split("\n")[:2] for tile in tiles]
        key, baseline = ("auc", "popularity") if name == "watch" else ("mse", "mean")
        assert [key.upper(), f"{metrics[key]:.3f}"] in lines
        bound = card["baselines"][name][baseline][key]
        assert sum(f"baseline: {baseline} {bound:.3f}" in tile.text for tile in tiles) == 1


def test_a_bar_without_a_valid_range_takes_that_of_the_training_labels(page: Page) -> None:
    page.ask("7")
    said = "The bar of rating spans 1 to 4.5, the range of its training labels."
    assert said in page.text("ranges")
    for task in page.find("[data-task=rating]"):
        share = min(1, max(0, (float(task.get_attribute("data-value")) - 1) / 3.5))
        fill, track = (task.find_element(By.CLASS_NAME, name) for name in ("fill", "track"))
        assert fill.size["width"] == pytest.approx(track.size["width"] * share, abs=1)


def test_idle_is_said_as_the_report_says_it(page: Page) -> None:
    page.wait(lambda: page.focused() == "user")
    assert page.text("idle") == f"Idle: {IDLE} ({IDLE_WORDS})."
    tags = {
        card.find_element(By.TAG_NAME, "h3").text: card.find_elements(By.CLASS_NAME, "tag")
        for card in page.find("#profiles > li")
    }
    words = [tag[0].text if tag else "" for tag in tags.values()]
    assert words == ["", "rarely for watch", "idle", "rarely for rating"]


def test_an_expert_says_the_same_of_itself_everywhere(page: Page, server: Threaded) -> None:
    page.ask("7")
    experts = server.client.get("/model").json()["experts"]
    cards = [card.text for card in page.find("#profiles > li")]
    for card, expert in zip(cards, experts, strict=True):
        assert all(trait["value"] in card for trait in expert["traits"])
        assert all(item["title"] in card for item in expert["items"])
    for line in page.find(".experts li > span:first-child"):
        number, words = line.text.removeprefix("expert ").split(": ", 1)
        expert = experts[int(number)]
        traits = [trait["value"] for trait in expert["traits"][:2]]
        titles = [f"items like {item['title']}" for item in expert["items"][:1]]
        nothing = ["no clear specialisation"]
        for part in traits or titles or nothing:
            assert part in words
