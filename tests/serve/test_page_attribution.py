"""Attributions on the page: history items and features, for known and new users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tells
from tests.looks import SCHEMES, WIDTHS, excess, faint_texts, window
from tests.serve.browsing import By, Keys, Page
from tests.serve.conftest import Threaded, threaded


@pytest.fixture(scope="module")
def server(featured_run: Path) -> Iterator[Threaded]:
    """A model of features and histories."""
    with threaded(featured_run / "model") as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Threaded) -> Page:
    return Page(browser, server)


def explained(server: Threaded, user: Any, items: list[Any]) -> list[Any]:
    body = {"users": [user] * len(items), "items": items, "attributions": 6}
    pairs: list[Any] = server.client.post("/explain", json=body).json()["pairs"]
    return pairs


def check(page: Page, pairs: list[Any]) -> None:
    """Every row says what /explain says."""
    raised = 0
    for row, pair in zip(page.rows(), pairs, strict=True):
        attributions = pair["tasks"]["watch"]["attributions"]
        positives = [r for r in attributions if r["kind"] == "item" and r["contribution"] > 0][:3]
        rated = ["" if r["rating"] is None else f" (rated {r['rating']:g})" for r in positives]
        named = [r["title"] + rating for r, rating in zip(positives, rated, strict=True)]
        said = row.find_element(By.CLASS_NAME, "because").text
        assert said == (f"Because of {'; '.join(named)}" if named else "")
        raised += bool(named)
        for name, task in pair["tasks"].items():
            lines = row.find_elements(By.CSS_SELECTOR, f"[data-task={name}] .attributions li")
            others = [r for r in task["attributions"] if r["kind"] != "item"][:6]
            for line, reason in zip(lines, others, strict=True):
                assert line.text.split("\n")[0] == reason["words"]
                assert line.text.endswith(f"{abs(reason['contribution']):.2f}")
    assert raised


@pytest.mark.slow
def test_a_known_user_gets_the_attributions_of_the_api(page: Page, server: Threaded) -> None:
    page.ask("7")
    items = [row.get_attribute("data-item") for row in page.rows()]
    check(page, explained(server, 7, items))
    assert "feature attributions" in page.text("why")
    page.browser.get_log("browser")


@pytest.mark.slow
def test_a_new_user_gets_the_fields_of_the_model_and_the_attributions_of_the_api(
    page: Page, server: Threaded
) -> None:
    page.wait(lambda: page.focused() == "user")
    page.find("#cold_user summary")[0].click()
    names = [field.get_attribute("name") for field in page.find("#traits input")]
    assert names == ["age", "job"]
    offered = [value.get_attribute("value") for value in page.find("#trait-1-values option")]
    assert offered == ["job 0", "job 1", "job 2"]
    page.find("#history")[0].send_keys("3=5, 4, 3=1, 977")
    page.find("#trait-0")[0].send_keys("45")
    page.find("#trait-1")[0].send_keys("<b>pirate</b>", Keys.ENTER)
    page.wait(lambda: page.text("status").endswith("for new user"))
    new = {"features": {"age": "45", "job": "<b>pirate</b>"}, "history": {"3": 5, "4": None}}
    body = {"users": [new], "k": 10, "exclude_seen": True}
    [ranking] = server.client.post("/recommend", json=body).json()["rankings"]
    items = [entry["item"] for entry in ranking["items"]]
    assert [row.get_attribute("data-item") for row in page.rows()] == list(map(str, items))
    check(page, explained(server, new, items))
    assert page.text("results-title") == "For new user"
    left = "Unknown in training and ignored: job <b>pirate</b>; items 977."
    assert page.text("notice") == left
    assert page.text("positives-title") == ""
    page.find("#user")[0].click()
    page.ask("7")
    assert page.text("notice") == "" and page.text("positives-title").startswith(
        "User 7 interacted with"
    )


def test_an_invalid_feature_of_a_new_user_is_named(page: Page) -> None:
    page.wait(lambda: page.focused() == "user")
    page.find("#cold_user summary")[0].click()
    page.find("#cold_user button")[0].click()
    assert page.focused() == "history"  # all fields are empty
    page.find("#trait-0")[0].send_keys("old", Keys.ENTER)
    page.wait(lambda: tells(page.text("error"), "'age' ... got 'old'"))
    page.browser.get_log("browser")


def test_a_model_of_ids_has_no_form_for_new_users(browser: Any, run: Path) -> None:
    with threaded(run / "model") as server:
        page = Page(browser, server)
        page.ask("7")
        assert not page.find("#cold_user")[0].is_displayed()
        assert page.text("why") == "" and not page.find(".attributions")
    browser.get_log("browser")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window_and_all_text_can_be_read(
    page: Page, width: int, scheme: str
) -> None:
    with window(page.browser, width, scheme):
        page.ask("7")
        for summary in page.find("summary"):
            summary.click()
        page.rows()[0].find_element(By.TAG_NAME, "button").click()
        page.wait(lambda: page.find(".near li"))
        assert excess(page.browser) <= 0
        assert faint_texts(page.browser) == []
