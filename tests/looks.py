"""What a page looks like in a browser: how wide it is, and whether its text can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WIDTHS = (360, 1280, 1920)
SCHEMES = ("light", "dark")

FAINT = """
const channel = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = (rgb) =>
  [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * channel(rgb[i] / 255), 0);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const rgba = parts(getComputedStyle(at).backgroundColor);
    if (rgba.length === 3 || rgba[3] === 1) return rgba;
  }
  return [255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join("");
  const box = element.getBoundingClientRect();
  if (!text.trim() || !box.width || element.closest("svg, .hidden, .skip, noscript")) continue;
  const [a, b] = [parts(getComputedStyle(element).color), ground(element)].map(luminance);
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${element.tagName} ${text.trim()}`);
}
return found;
"""


@contextmanager
def window(browser: Any, width: int, scheme: str = "light") -> Iterator[None]:
    """A window of this width, for a reader of the light or the dark theme."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    wish = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def excess(browser: Any) -> int:
    """Pixels by which the page is wider than the window."""
    widths = "return ((e) => e.scrollWidth - e.clientWidth)(document.documentElement)"
    return int(browser.execute_script(widths))


def faint_texts(browser: Any) -> list[str]:
    """Texts below the contrast of 4.5 that WCAG 2 asks for."""
    return list(browser.execute_script(FAINT))
