"""Where a study is stored: checks and shows the URL of its database."""

from __future__ import annotations

from typing import Any

from recsys_moe.errors import ConfigError

DATABASE = "study.db"
SCHEMES = ("sqlite", "postgresql")
WRITTEN_OPTIONS = ("dbname", "host", "port", "service", "sslmode", "user")
"""Query options of a storage URL that are known not to be secret."""


def load_optuna() -> Any:
    """The module `optuna`. Raises ConfigError if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError('tune needs optuna: pip install "recsys-moe[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def safe_storage(url: str | None) -> str:
    """A storage URL without its secrets. Raises ConfigError for an unsupported one."""
    if url is None:
        return DATABASE
    load_optuna()
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
        # An @ in the host is the rest of a password with an @.
        known = parsed.get_backend_name() in SCHEMES and "@" not in (parsed.host or "")
    except (ArgumentError, ValueError):
        known = False
    if not known or not parsed.database:
        # The value is not repeated: it may hold a password.
        raise ConfigError(
            "--storage must look like sqlite:///FILE or postgresql://USER@HOST/DATABASE; "
            "an @ in a password is written %40; leave it out for a file in --out"
        )
    query = {name: value for name, value in parsed.query.items() if name in WRITTEN_OPTIONS}
    return parsed.set(query=query).render_as_string(hide_password=True)
