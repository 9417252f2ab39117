"""Settings of MultiTaskMoE."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema, model_validator

from recsys_moe.model.settings import ModelConfig
from recsys_moe.routers import ROUTERS, RouterConfig, find_router
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.section import named_schema

DEFAULT_ROUTER = "moesart"


def _router(value: Any) -> Any:
    if isinstance(value, RouterConfig):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        raise ValueError(
            f"model.router must be a name or a mapping with one, got {value!r}; "
            "e.g. model.router.name=topk"
        )
    name = str(value.get("name", DEFAULT_ROUTER))
    return find_router(name).Config.model_validate({**value, "name": name})


def _router_schema(default: str) -> dict[str, Any]:
    """JSON schema of `model.router`: a name or a section; `default`: the router without a name."""
    outside = {"type": "string", "pattern": ":"}
    sections = [named_schema(name, router.Config) for name, router in ROUTERS.items()]
    del sections[[*ROUTERS].index(default)]["required"]
    foreign = {"type": "object", "properties": {"name": outside}, "required": ["name"]}
    return {"anyOf": [{"enum": list(ROUTERS)}, outside, *sections, foreign]}


class MoEConfig(ModelConfig):
    name: str = "mtmoe"
    num_experts: int = Field(default=16, ge=1)
    expert_dim: int = Field(default=256, ge=1)
    """Units of each expert (one Dense + ReLU layer)."""
    tower_dims: tuple[Annotated[int, Field(ge=1)], ...] = (256,)
    """Widths of the Dense + ReLU layers between mixture and head, per task."""
    bilinear_rank: int = Field(default=0, ge=0)
    """Rank of the bilinear term <P u, v> + b_u + b_i of user vector u and item vector v, added
    to each task's logit beside the experts; at most `embedding_dim`. 0: none."""
    bilinear_diagonal: bool = False
    """P is diagonal with weights between -1 and 1 for the first `bilinear_rank` dimensions, so
    that weight decay limits the bilinear term as in matrix factorisation."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout rate inside each expert, after the ReLU."""
    dispatch: Literal["auto", "sparse", "static", "dense"] = "auto"
    """How experts are computed: `sparse` (chosen pairs only), `dense` (all), `auto` (what the
    router allows), or `static` (as `sparse` in fixed shapes, for a GPU; experimental)."""
    router: Annotated[
        SerializeAsAny[RouterConfig],
        BeforeValidator(_router),
        WithJsonSchema(_router_schema(DEFAULT_ROUTER)),
    ] = Field(default_factory=MoesartRouter.Config)
    """Every router has settings of its own: `recsys-moe config show --router NAME`."""

    @model_validator(mode="after")
    def _router_fits(self) -> MoEConfig:
        self.router.check(self.num_experts)
        return self

    @model_validator(mode="after")
    def _bilinear_fits(self) -> MoEConfig:
        if self.bilinear_rank > self.embedding_dim:
            raise ValueError(
                f"model.bilinear_rank must be at most model.embedding_dim={self.embedding_dim}, "
                f"got {self.bilinear_rank}; lower it"
            )
        if self.bilinear_diagonal and not self.bilinear_rank:
            raise ValueError(
                "model.bilinear_diagonal must be false with model.bilinear_rank=0, got true; add "
                f"model.bilinear_rank={self.embedding_dim}"
            )
        return self

    @property
    def eval_rows(self) -> int:
        return self.router.eval_rows

    @property
    def remarks(self) -> list[str]:
        return self.router.remarks

    @property
    def idle_penalties(self) -> tuple[str, dict[str, str]]:
        return f"router {self.router.name}", self.router.idle_penalties

    def check_tasks(self, num_tasks: int) -> None:
        self.router.check_tasks(self.num_experts, num_tasks)
