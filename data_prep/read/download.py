"""Fetch a file once, whole and verified, into a cache folder."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from recsys_moe.interrupts import unwinding
from recsys_moe.schema import ConfigError, DataError

log = logging.getLogger("recsys_moe.prepare")
ATTEMPTS = 5
TIMEOUT_S = 30.0
_PIECE = 1 << 18
_BY_HAND = "fetch it by other means and pass --source ZIP or --source DIR"
_WORTH_RETRYING = (408, 425, 429, 500, 502, 503, 504)


def cache_folder() -> Path:
    """$RECSYS_MOE_CACHE, or ~/.cache/recsys-moe."""
    named = os.environ.get("RECSYS_MOE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "recsys-moe"


def fetch(
    url: str, checksum: str, folder: Path, *, wait: Callable[[float], None] = time.sleep
) -> Path:
    """The file behind `url`, from `folder` when it is there already.

    `checksum`: hex SHA-256 (64 digits) or MD5 (32 digits). A broken transfer is resumed, up to
    ATTEMPTS times with pauses of 1, 2, 4, ... seconds, and by the next call. Raises DataError when
    the file cannot be had or has another checksum; then no file is left.
    """
    expected = checksum.lower()
    digest = {64: "sha256", 32: "md5"}.get(len(expected))
    if digest is None or set(expected) - set("0123456789abcdef"):
        raise ConfigError(f"--checksum must be 64 (or, for MD5, 32) hex digits, got {checksum!r}")
    target = folder / (Path(urllib.parse.urlsplit(url).path).name or "download")
    if target.is_file() and _checksum(target, digest) == expected:
        log.info("using %s", target)
        return target
    part = target.with_name(target.name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _with_retries(url, part, wait)
        _verify(part, url, digest, expected)
        part.replace(target)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _with_retries(url: str, part: Path, wait: Callable[[float], None]) -> None:
    for attempt in range(ATTEMPTS):
        try:
            return _transfer(url, part)
        except _Interrupted as trouble:
            if attempt == ATTEMPTS - 1:
                raise DataError(f"{url}: {trouble} after {ATTEMPTS} attempts; {_BY_HAND}") from None
            log.warning("%s: %s; trying again in %d s", url, trouble, 2**attempt)
            wait(2.0**attempt)


class _Interrupted(Exception):
    """A transfer that may go better the next time."""


def _transfer(url: str, part: Path) -> None:
    """Append what is missing of `url` to `part`. S310: callers pass http:// and https:// alone."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            _save(response, part, have if response.status == 206 else 0)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is whole, or of another file: only a new one can tell
            part.unlink(missing_ok=True)
        elif error.code not in _WORTH_RETRYING:
            raise DataError(f"{url}: the server answered {error.code}; {_BY_HAND}") from None
        raise _Interrupted(f"the server answered {error.code}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            raise DataError(
                f"{url}: the server's certificate was refused ({error.reason}); the publisher's "
                f"certificate expires from time to time: try again later, or {_BY_HAND}"
            ) from None
        raise _Interrupted(f"no connection ({error.reason})") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError) as error:
        raise _Interrupted(f"the connection broke ({error})") from None
    except ValueError as error:
        raise ConfigError(f"--source {url} is not a usable URL: {error}") from None


def _save(response: http.client.HTTPResponse, part: Path, have: int) -> None:
    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    with part.open("ab" if have else "wb") as file, _progress(part.stem, total) as show:
        while piece := response.read(_PIECE):
            file.write(piece)
            show(file.tell())
        size = file.tell()
    if total is not None and size < total:
        raise _Interrupted(f"got {size} of {total} bytes")


def _verify(part: Path, url: str, digest: str, expected: str) -> None:
    actual = _checksum(part, digest)
    if actual != expected:
        part.unlink()
        raise DataError(
            f"{url}: {digest} must be {expected}, got {actual}; the file was deleted. Try "
            "again, or pass --checksum if the publisher has changed the file and you trust it"
        )


def _checksum(path: Path, name: str) -> str:
    digest = hashlib.new(name, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of bytes that are there: a bar, or a line per tenth."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        with unwinding(), Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(name, total=total)
            yield lambda size: bar.update(task, completed=size)
    else:
        yield partial(_log_tenths, name, total, set())


def _log_tenths(name: str, total: int | None, logged: set[int], size: int) -> None:
    tenths = 10 * size // total if total else 0
    if tenths and tenths not in logged:
        logged.add(tenths)
        log.info("%s: %d%% of %d bytes", name, 10 * tenths, total)
