"""The page at `/` in a real browser against a real server, with the keyboard alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from recsys_moe.serve.page import FILES, POLICY
from tests.serve.browsing import By, Keys, Page
from tests.serve.conftest import KEY, Caller, Threaded, retrained, sealed, threaded


@pytest.mark.parametrize("path", sorted(FILES))
def test_the_files_need_no_key_and_allow_nothing_from_elsewhere(path: str, run: Path) -> None:
    answer = Caller(run, key=KEY)("GET", path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(FILES[path][1])
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    outside = answer.text.replace("http://www.w3.org/2000/svg", "")  # a name, never fetched
    assert "://" not in outside
    assert answer.text.isascii()


def test_the_model_names_users_to_try(caller: Caller) -> None:
    answer = caller("GET", "/model").json()
    # Of 60 users the first, the last and six between them: 59 / 7 = 8.4 apart, rounded down.
    assert answer["example_users"] == [1, 9, 17, 26, 34, 43, 51, 60]


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Threaded]:
    with threaded(run / "model") as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Threaded) -> Page:
    return Page(browser, server)


def test_a_user_typed_on_the_keyboard_gets_what_the_service_answers(
    page: Page, server: Threaded
) -> None:
    page.ask("7")
    body = {"users": ["7"], "k": 10, "exclude_seen": True, "score": "watch"}
    ranked = server.client.post("/recommend", json=body).json()["rankings"][0]["items"]
    pairs = {"users": ["7"] * 10, "items": [entry["item"] for entry in ranked]}
    explained = server.client.post("/explain", json=pairs).json()["pairs"]
    assert len(page.rows()) == len(ranked) == 10
    assert page.text("together") == ""
    for row, entry, pair in zip(page.rows(), ranked, explained, strict=True):
        assert row.get_attribute("data-item") == str(entry["item"])
        assert row.find_element(By.TAG_NAME, "h3").text == entry["title"]
        for name, task in pair["tasks"].items():
            part = row.find_element(By.CSS_SELECTOR, f"[data-task={name}]")
            value = entry["scores"][name]
            assert float(part.get_attribute("data-value")) == value
            shown = f"{100 * value:.1f} %" if name == "watch" else f"{value:.2f}"
            assert part.find_element(By.CSS_SELECTOR, ".line").text.split("\n") == [name, shown]
            words = [text.text for text in part.find_elements(By.CSS_SELECTOR, ".experts li")]
            shares = task["experts"]
            assert len(words) == len(shares) == 2  # MOESART's k
            for line, expert in zip(words, shares, strict=True):
                assert line.startswith(f"expert {expert['expert']}: ")
                assert line.endswith(f"{abs(expert['contribution']):.2f}")


def test_nothing_comes_from_elsewhere_and_the_browser_reports_no_error(page: Page) -> None:
    page.ask("1")
    fetched = page.browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    names = ("page.js", "parts.js", "page.css", "page.svg", "model", "recommend", "seen", "explain")
    assert {f"{page.address}/{name}" for name in names} <= set(fetched)
    assert [name for name in fetched if not name.startswith(f"{page.address}/")] == []
    # The browser itself notes the 401 that makes the page ask for the key.
    entries = [e["message"] for e in page.browser.get_log("browser")]
    assert [message for message in entries if "model - Failed to load" not in message] == []


def test_recommendations_of_an_unknown_user_are_non_personalised(page: Page) -> None:
    page.ask("nobody")
    assert "nobody is unknown: these recommendations are non-personalised" in page.text("notice")
    page.ask("7")
    assert page.text("notice") == ""


def test_every_control_is_reached_by_tab_in_reading_order(page: Page) -> None:
    page.wait(lambda: page.focused() == "user")
    order = []
    for _ in range(5):
        order.append(page.focused() or page.browser.switch_to.active_element.text)
        page.type(Keys.TAB)
    assert order == ["user", "k", "score", "Recommend", "seen"]
    page.type(Keys.ENTER)  # the first of the users to try
    page.wait(lambda: page.text("status").endswith("for user 1"))


def test_a_wrong_key_is_said_and_asked_for_again(browser: Any, server: Threaded) -> None:
    page = Page(browser, server, "wrong")
    page.wait(lambda: "API key is wrong" in page.text("error"))
    assert page.focused() == "key"
    browser.get_log("browser")


def test_the_load_of_every_expert_is_a_bar_and_a_sentence(page: Page, server: Threaded) -> None:
    page.wait(lambda: page.focused() == "user")
    routing = server.client.get("/model").json()["metrics"]["val"]["routing"]
    for element, (name, task) in zip(
        page.browser.find_elements(By.CLASS_NAME, "task-load"), routing.items(), strict=True
    ):
        assert element.find_element(By.TAG_NAME, "h3").text == name
        bars = element.find_elements(By.TAG_NAME, "li")
        words = [f"Expert {e}: {100 * part:.1f} %" for e, part in enumerate(task["load"])]
        heights = [bar.find_element(By.CSS_SELECTOR, ".bar > *").size["height"] for bar in bars]
        assert [bar.get_property("textContent") for bar in bars] == words
        most = max(task["load"])
        assert heights == pytest.approx([71 * part / most for part in task["load"]], abs=1)


def test_a_model_without_titles_and_figures_is_shown_and_a_service_that_is_gone_is_said(
    browser: Any, rivals: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(rivals, tmp_path / "model"))
    items = pq.read_table(folder / "items.parquet")
    pq.write_table(items.drop_columns(["title"]), folder / "items.parquet")
    sealed(folder, "items.parquet")
    with threaded(folder) as server:
        page = Page(browser, server)
        page.ask("7")
        for row in page.rows():
            title = f"Item {row.get_attribute('data-item')}"
            assert row.find_element(By.TAG_NAME, "h3").text == title
        assert not page.browser.find_element(By.ID, "load").is_displayed()
        assert "routes items together" in page.text("together")
        server.stop()
        page.type(Keys.ENTER)
        page.wait(lambda: "does not respond" in page.text("error"))
    browser.get_log("browser")


def test_an_answer_to_an_older_question_is_not_shown(page: Page) -> None:
    page.wait(lambda: page.focused() == "user")
    page.browser.execute_script(
        """const real = window.fetch;
        window.fetch = (path, options) =>
          path === "recommend" && options.body.includes('"7"')
            ? new Promise((done) => {
                window.release = () => real(path, options).then(done).then(() => (window.late = 1));
              })
            : real(path, options);"""
    )
    page.type("7", Keys.ENTER)
    page.wait(lambda: page.browser.execute_script("return Boolean(window.release)"))
    page.ask("1")
    page.browser.execute_script("window.release()")
    page.wait(lambda: page.browser.execute_script("return window.late"))
    assert page.text("results-title") == "For user 1"
    assert page.text("status").endswith("for user 1")


def test_another_model_is_noticed_with_the_next_answer(
    browser: Any, run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(run / "model", tmp_path / "model"))
    with threaded(folder) as server:
        page = Page(browser, server)
        page.ask("7")
        page.browser.find_element(By.CSS_SELECTOR, "#score option[value=rating]").click()
        retrained(folder)
        version = server.client.post("/reload").json()["model"]
        assert version not in page.text("facts")
        page.browser.find_element(By.ID, "user").click()
        page.ask("7")
        assert page.text("facts").endswith(f"model {version}")
        assert page.browser.find_element(By.ID, "score").get_attribute("value") == "rating"
    browser.get_log("browser")
