"""Settings of routers: what a router's own Config is derived from."""

from __future__ import annotations

from recsys_moe.section import Section

PENALTY_NAMES = (
    *("trimmed_lasso", "switch", "importance", "load", "z_loss", "disagreement"),
    "coupling",
)
"""Those of recsys_moe.model.penalties, which reads routings and hence cannot be imported here, and
of recsys_moe.model.coupling."""
NO_ROWS = {"coupling": "has no gate row per expert"}
NO_PROBABILITIES = dict.fromkeys(
    ("trimmed_lasso", "switch", "load", "z_loss", "disagreement"), "has no probabilities"
)
"""Both of `RouterConfig.idle_penalties`."""


class RouterConfig(Section):
    """Settings of a router; each router nests its own `Config` with a default for every key."""

    name: str
    """Name in the table of routers, or `package.module:Class`."""

    def check(self, num_experts: int) -> None:
        """Raise ValueError when these settings cannot work with `num_experts` experts."""

    def check_tasks(self, num_experts: int, num_tasks: int) -> None:
        """Raise ConfigError where they cannot divide `num_experts` among `num_tasks`."""

    @property
    def idle_penalties(self) -> dict[str, str]:
        """Penalties that cannot act with these settings, and why in words after "which".

        The configuration refuses a weight for them.
        """
        return {}

    @property
    def remarks(self) -> list[str]:
        """Warnings about allowed settings, printed before training; one line each."""
        return []

    @property
    def eval_rows(self) -> int:
        """Consecutive rows that evaluation must not cut apart: `eval_group` where there is one."""
        return int(getattr(self, "eval_group", 1))


class KConfig(RouterConfig):
    """Settings of a router with a whole number k of experts per example."""

    k: int = 2
    """Experts kept per example, 1..num_experts."""

    def check(self, num_experts: int) -> None:
        check_k(self.k, num_experts)


class FixedConfig(RouterConfig):
    """Settings of a router without parameters."""

    @property
    def idle_penalties(self) -> dict[str, str]:
        return dict.fromkeys(PENALTY_NAMES, "learns nothing")


def check_k(k: int, num_experts: int) -> None:
    """Raise ValueError unless 1 <= k <= num_experts."""
    if not 1 <= k <= num_experts:
        raise ValueError(
            f"model.router.k must be in 1..model.num_experts={num_experts}, got {k}; "
            "lower k or raise model.num_experts"
        )
