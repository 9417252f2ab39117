"""A person before the page: presses keys, and looks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.conftest import KEY, Threaded

pytest.importorskip("selenium.webdriver", reason="selenium is in [dev]")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

__all__ = ["By", "Keys", "Page"]


class Page:
    """What a person does: press keys, and look."""

    def __init__(self, browser: Any, server: Threaded, key: str = KEY) -> None:
        self.browser, self.address = browser, str(server.client.base_url).rstrip("/")
        self.console: list[str] = []
        browser.get(f"{self.address}/")
        self.wait(lambda: self.focused() == "key")
        self.type(key, Keys.ENTER)

    def wait(self, condition: Any) -> None:
        WebDriverWait(self.browser, 20, 0.05).until(lambda _: condition())

    def type(self, *keys: str) -> None:
        self.browser.switch_to.active_element.send_keys(*keys)

    def focused(self) -> str:
        return str(self.browser.switch_to.active_element.get_attribute("id"))

    def text(self, element: str) -> str:
        return str(self.browser.find_element(By.ID, element).text)

    def ask(self, user: str) -> None:
        self.wait(lambda: self.focused() == "user")
        self.type(Keys.CONTROL, "a")  # a modifier is held until the end of the call
        self.type(user, Keys.ENTER)
        self.wait(lambda: self.text("status").endswith(f"for user {user}"))

    def find(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements(By.CSS_SELECTOR, selector))

    def rows(self) -> list[Any]:
        return self.find("#items > li")
