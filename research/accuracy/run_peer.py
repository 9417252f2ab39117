"""Fit one peer once, in whichever environment this runs: rows in, scores of every pair out.

python -m research.accuracy.run_peer '{"fit": "linear:ease", "rows": ..., "out": ..., ...}'
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from research.accuracy import rows


def main() -> None:
    order = json.loads(sys.argv[1])
    print(json.dumps(run(order)))


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Minutes of processor time, all threads, and versions; the scores go to `order["out"]`."""
    module, _, function = order["fit"].partition(":")
    fit = getattr(importlib.import_module(f"research.accuracy.scorers.{module}"), function)
    given = rows.read(Path(order["rows"]))
    start = time.process_time()
    fitted = fit(given, order["settings"], order["seed"])
    minutes = (time.process_time() - start) / 60
    found = {name: values for name, values in fitted()._asdict().items() if values is not None}
    np.savez(order["out"], **found)
    return {"minutes": round(minutes, 3), "versions": versions(order["packages"])}


def versions(packages: list[str]) -> str:
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


if __name__ == "__main__":
    main()
