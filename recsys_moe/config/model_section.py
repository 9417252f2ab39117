"""The section `model` of a configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from recsys_moe.config.text import router_schema
from recsys_moe.routers import RouterConfig, find_router
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.section import Section

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


def _names(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value not in ("none", "all"):
        value = [name.strip() for name in value.split(",")]
    if not isinstance(value, str) and not _are_different_names(value):
        raise ValueError(
            f"model.{info.field_name} must be none, all or different names, got {value!r}; "
            f"e.g. model.{info.field_name}={EXAMPLES[str(info.field_name)]}"
        )
    return value


def _are_different_names(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(name, str) and name for name in value) and len({*value}) == len(value)


EXAMPLES = {"features": "genres,year", "context": "hour,device"}
Names = Annotated[
    Literal["none", "all"] | tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_names),
]


class ModelConfig(Section):
    embedding_dim: int = Field(default=128, ge=1)
    """Width of the user embedding and of the item embedding."""
    features: Names = "none"
    """Features of users and items whose embeddings are added to those of the ids: `none`,
    `all`, or a list of names."""
    context: Names = "none"
    """Context features (`prepare table --context`) whose embeddings are added to the user's
    vector: `none`, `all`, or a list of names."""
    item_bag: Literal["none", "items", "ratings"] = "none"
    """Item bag of a user: the items of the user's training rows, pooled and added to the
    embedding of the id (SVD++). `items`: one embedding per item; `ratings`: depends on the
    rating too."""
    user_bag: Literal["none", "users", "ratings"] = "none"
    """User bag of an item: the users of the item's training rows. `users`: one embedding per
    user; `ratings`: depends on the rating too."""
    bag_dim: int = Field(default=64, ge=0)
    """Width of the embeddings in bags, which are projected to `embedding_dim`. 0: as wide as
    those, without a projection, so that weight decay acts on bags directly."""
    bag_levels: int = Field(default=5, ge=2, le=10)
    """Levels of ratings in bags, evenly from the lowest to the highest training label."""
    bag_ratings: Literal["levels", "linear"] = "levels"
    """How bags of `ratings` use a rating. `levels`: one embedding per level; `linear`: one
    embedding plus a second one times the standardised rating, so that all ratings train
    both."""
    bag_dropout: float = Field(default=0.5, ge=0, lt=1)
    """Share of each bag that is dropped at random in a training step. Without it, bags leak
    training labels."""
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
    biases: bool = True
    """Logits start at the training mean plus fitted user and item biases; experts learn the
    rest, in standard deviations of the labels. `false`, as in the paper: logits start at 0."""
    dispatch: Literal["auto", "sparse", "dense"] = "auto"
    """How experts are computed: `sparse` (chosen pairs only), `dense` (all), or `auto` (what
    the router allows)."""
    router: Annotated[
        SerializeAsAny[RouterConfig],
        BeforeValidator(_router),
        WithJsonSchema(router_schema(DEFAULT_ROUTER)),
    ] = Field(default_factory=MoesartRouter.Config)
    """Every router has settings of its own: `recsys-moe config show --router NAME`."""

    @model_validator(mode="after")
    def _router_fits(self) -> ModelConfig:
        self.router.check(self.num_experts)
        return self

    @model_validator(mode="after")
    def _bilinear_fits(self) -> ModelConfig:
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
    def has_encoders(self) -> bool:
        """Whether users and items have features or bags besides the embeddings of their ids."""
        return any(one != "none" for one in (self.features, self.item_bag, self.user_bag))
