"""Bounds of requests and queues. Checked once, shown in OpenAPI."""

from __future__ import annotations

from dataclasses import dataclass, fields

from recsys_moe.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """Bounds of the service. Raises ConfigError for a bound below 1, or seconds not above 0."""

    max_body: int = 1 << 20
    """Bytes of a request's body."""
    max_rows: int = 10_000
    """Pairs of one /predict, candidates of one /recommend."""
    max_explain: int = 100
    """Pairs of one /explain."""
    max_users: int = 16
    """Users of one /recommend."""
    max_k: int = 1000
    """Items per user of one /recommend."""
    max_queue: int = 50_000
    """Pairs of /predict that may wait; above it 429."""
    max_queue_users: int = 512
    """Users of /recommend, and pairs of /explain, that may wait; above it 429."""
    max_requests: int = 256
    """Requests of all kinds that may wait; above it 429."""
    timeout: float = 10.0
    """Seconds until a request fails with 504, and until an idle connection is closed."""
    drain: float = 30.0
    """Seconds for requests in flight to finish after SIGTERM."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                self._require(field.name, value >= 1, "at least 1")
            else:
                self._require(field.name, 0 < value <= 86_400, "above 0 and at most 86400 seconds")
        self._require("max_queue", self.max_queue >= self.max_rows, "at least --max-rows")
        self._require(
            "max_queue_users", self.max_queue_users >= self.max_users, "at least --max-users"
        )
        self._require(
            "max_queue_users", self.max_queue_users >= self.max_explain, "at least --max-explain"
        )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} must be {rule}, got {getattr(self, name)}")
