"""The manifest of a model folder: its format version, and the SHA-256 of every file.

The version grows when a folder would be read differently (4: encoders, 5: context features, 6:
events, 7: time).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import recsys_moe
from recsys_moe.config.settings import Config
from recsys_moe.files import sha256_file
from recsys_moe.schema import DataError

FORMAT = "recsys-moe-artifact"
FORMAT_VERSION, WITH_ENCODERS, WITH_CONTEXT, WITH_EVENTS, WITH_TIME = VERSIONS = (3, 4, 5, 6, 7)
MANIFEST = "manifest.json"
FILES = (
    "weights.safetensors",
    "seen.safetensors",
    "users.parquet",
    "items.parquet",
    "schema.json",
    "config.yaml",
    "card.json",
    "calibration.json",
)
ENCODERS, VOCABULARIES = "encoders.safetensors", "features.parquet"
"""Optional: encoders of features and histories, and the categories."""
HISTORY = "history.safetensors"
"""Optional: the histories in the vectors of known users."""
EVENTS = "events.safetensors"
"""Optional: the last events of known users."""
ITEMS = "items.safetensors"
"""Optional: age and popularity of items at the end of the log."""
OPTIONAL = (ENCODERS, VOCABULARIES, HISTORY, EVENTS, ITEMS)


def version_of(config: Config, has_encoders: bool) -> int:
    """Of the folder of a model."""
    if config.model.chosen_times:
        return WITH_TIME
    if config.model.sequence != "none":
        return WITH_EVENTS
    plain = WITH_ENCODERS if has_encoders else FORMAT_VERSION
    return plain if config.model.context == "none" else WITH_CONTEXT


def manifest_of(folder: Path, version: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": version,
        "recsys_moe": recsys_moe.__version__,
        "files": {file: sha256_file(folder / file) for file in _present(folder)},
    }


def _present(folder: Path) -> list[str]:
    return [*FILES, *(file for file in OPTIONAL if (folder / file).is_file())]


def find_artifact(path: Path) -> Path:
    """`path` itself when it is an artifact, or `path`/model of a run folder.

    Raises DataError when it is neither.
    """
    path = Path(path)
    for folder in (path, path / "model"):
        if (folder / MANIFEST).is_file():
            return folder
    raise DataError(
        f"{path} is neither a model folder nor a run folder with a model (no {MANIFEST}); "
        "train with `recsys-moe fit` first"
    )


def check_files(folder: Path) -> None:
    """Refuse another format and any file that is missing or not the one that was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, hashes = manifest["format_version"], dict(manifest["files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{folder}/{MANIFEST} is damaged; export the model again") from None
    if type(version) is not int or version not in VERSIONS:
        raise DataError(
            f"{folder}: format_version must be in {VERSIONS[0]}..{VERSIONS[-1]}, got "
            f"{version!r}; use the version of recsys-moe that wrote it, or export the model again"
        )
    if strangers := sorted(hashes.keys() - {*FILES, *OPTIONAL}):  # a path may lead anywhere
        what = f"{strangers[0][:200]!r}, which is not a file of a model folder"
        raise DataError(f"{folder}/{MANIFEST} names {what}; export the model again")
    needed = [*FILES, ENCODERS] if version == WITH_ENCODERS else FILES
    for file in dict.fromkeys([*needed, *hashes]):
        path = folder / file
        if not path.is_file():
            raise DataError(f"{path} is missing; export the model again")
        if sha256_file(path) != hashes.get(file):
            raise DataError(f"{path} was truncated or edited; export the model again")
