"""The section `model` of a configuration: every key with its default, its range and meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema, model_validator

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


def _features(value: Any) -> Any:
    if isinstance(value, str) and value not in ("none", "all"):
        value = [name.strip() for name in value.split(",")]
    if not isinstance(value, str) and not _are_different_names(value):
        raise ValueError(
            f"model.features must be none, all or different names, got {_plain(value)!r}; "
            "e.g. model.features=genres,year"
        )
    return value


def _are_different_names(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(name, str) and name for name in value) and len({*value}) == len(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class ModelConfig(Section):
    embedding_dim: int = Field(default=128, ge=1)
    """Width of the user embedding and of the item embedding."""
    features: Annotated[
        Literal["none", "all"] | tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(_features),
    ] = "none"
    """Features of users and items that are added to the embeddings of their ids: `none`, `all`, or
    a list of names. See docs/how-to/features.md."""
    item_bag: Literal["none", "items", "ratings"] = "none"
    """What a user watched or rated in training, pooled and added to the embedding of the id:
    `items` has one embedding per item, `ratings` one per item and level of its rating."""
    user_bag: Literal["none", "users", "ratings"] = "none"
    """The same of an item: `users` has one embedding per user who watched or rated it in training,
    `ratings` one per user and level of the rating."""
    bag_dim: int = Field(default=64, ge=0)
    """Width of the embeddings of histories; their sum is projected to `embedding_dim`. 0: as wide
    as those, without a projection, so that weight decay bounds what a history says."""
    bag_levels: int = Field(default=5, ge=2, le=10)
    """Levels of `ratings`, evenly from the lowest to the highest training label."""
    bag_ratings: Literal["levels", "linear"] = "levels"
    """`true`: of `ratings` one embedding per item or user and a second one times how many standard
    deviations the level is above the mean (0 of what was not rated), in place of one per level, so
    that all ratings teach both. No other history has levels."""
    bag_dropout: float = Field(default=0.5, ge=0, lt=1)
    """Share of every history that a training step leaves out, by chance. Without any, the labels
    of training rows can be read off what is missing in it."""
    num_experts: int = Field(default=16, ge=1)
    expert_dim: int = Field(default=256, ge=1)
    """Units of each expert (one Dense + ReLU layer)."""
    tower_dims: tuple[Annotated[int, Field(ge=1)], ...] = (256,)
    """Widths of the Dense + ReLU layers between mixture and head, per task."""
    bilinear_rank: int = Field(default=0, ge=0)
    """Rank r, at most `embedding_dim`, of what each task reads off the vectors u and v past the
    experts: b_u + b_i + <P u, v>, P of rank r and b linear in the vectors; 0: nothing."""
    bilinear_diagonal: bool = False
    """`false`: P is diagonal, with a weight between -1 and 1 for each of the first r dimensions, so
    that weight decay bounds what u and v say together, as in a matrix factorisation."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Rate inside each expert, after the ReLU."""
    biases: bool = True
    """Logits start at the training mean plus what the user and the item deviate from it, and the
    experts learn what that does not say, in standard deviations of the labels. `false`, as in the
    paper: logits start at 0."""
    dispatch: Literal["auto", "sparse", "dense"] = "auto"
    """How experts are computed: chosen pairs only, all of them, or what the router allows."""
    router: Annotated[
        SerializeAsAny[RouterConfig],
        BeforeValidator(_router),
        WithJsonSchema(router_schema(DEFAULT_ROUTER)),
    ] = Field(default_factory=MoesartRouter.Config)
    """Every router has keys of its own: `recsys-moe config show --router NAME` explains them."""

    @model_validator(mode="after")
    def _router_fits(self) -> ModelConfig:
        self.router.check(self.num_experts)
        return self

    @model_validator(mode="after")
    def _bilinear_fits(self) -> ModelConfig:
        if self.bilinear_rank > self.embedding_dim:
            raise ValueError(
                f"model.bilinear_rank must be at most model.embedding_dim={self.embedding_dim}, got "
                f"{self.bilinear_rank}; lower it"
            )
        if self.bilinear_diagonal and not self.bilinear_rank:
            raise ValueError(
                "model.bilinear_diagonal must be false with model.bilinear_rank=0, got true; add "
                f"model.bilinear_rank={self.embedding_dim}"
            )
        return self

    @property
    def has_encoders(self) -> bool:
        """Do vectors of users and items hold more than the embeddings of their ids?"""
        return any(one != "none" for one in (self.features, self.item_bag, self.user_bag))
