"""Settings that every model has: the section `model` of a configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from recsys_moe.errors import suggestion
from recsys_moe.routers.settings import PENALTY_NAMES
from recsys_moe.section import Section

ALONE = ("none", "all")


def _names(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value not in ALONE:
        value = [name.strip() for name in value.split(",")]
    if not isinstance(value, str) and not _are_different_names(value):
        raise ValueError(
            f"model.{info.field_name} must be none, all or different names, got {value!r}; "
            f"e.g. model.{info.field_name}={EXAMPLES[str(info.field_name)]}"
        )
    for word in () if isinstance(value, str) else ALONE:
        if word in value:
            raise ValueError(
                f"model.{info.field_name} must be {' or '.join(ALONE)} alone, or names, got "
                f"{','.join(value)}; set model.{info.field_name}={word}, or omit {word}"
            )
    return value


def _are_different_names(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(name, str) and name for name in value) and len({*value}) == len(value)


EXAMPLES = {
    "features": "genres,year",
    "context": "hour,device",
    "time_features": "hour,popularity",
}
Names = Annotated[
    Literal["none", "all"] | tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_names),
]


TIME_FEATURES = ("hour", "weekday", "gap", "events", "age", "popularity")


def _times(value: Any, info: ValidationInfo) -> Any:
    found = _names(value, info)
    for name in () if isinstance(found, str) else found:
        if name not in TIME_FEATURES:
            raise ValueError(
                f"model.time_features must be of {', '.join(TIME_FEATURES)}, got {name!r}; "
                f"{suggestion(name, TIME_FEATURES)}"
            )
    return found


TimeNames = Annotated[Literal["none", "all"] | tuple[str, ...], BeforeValidator(_times)]


class ModelConfig(Section):
    """Each model nests its own `Config`, derived from this one, with a default for every key."""

    name: str
    """The model: a name or `package.module:Class`. Every model has settings of its own:
    `recsys-moe config show --set model.name=NAME`."""
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
    bag_sample: int = Field(default=0, ge=0)
    """Most neighbours of a bag that a training step reads, a random sample of larger bags. 0: all;
    steps then take longer with the log, as popular items have bags of many users."""
    sequence: Literal["none", "decay", "lru", "gru", "attention"] = "none"
    """How the events before a row, in their order, are read into the user's vector: pools of
    learned decays, a linear recurrence, a GRU, or attention. Data need the order of events
    (`prepare --protocol time` or `leave-last`)."""
    sequence_length: int = Field(default=200, ge=1)
    """The last events of a user that are read."""
    sequence_blocks: int = Field(default=2, ge=1)
    """Blocks of the sequence encoder: a mixer of events and a feed-forward layer each."""
    sequence_dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout rate inside the sequence encoder."""
    sequence_gain: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Scale of what the sequence encoder says when training begins, beside embeddings of about .05.
    Small: it is used as far as the tasks ask for it. No place of a timeline is like another, so a
    loud encoder lets them learn rows by heart where labels stay the same in every epoch."""
    next_item_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the loss of the next item in training: a softmax over all items of the bilinear
    term of the first binary task, at every positive row. Usual with a sequence: 1."""
    time_features: TimeNames = "none"
    """What is read of the time of a row: `hour`, `weekday` (UTC), `gap` since the user's last
    event, number of the user's `events` so far, `age` and `popularity` of the item; `none`,
    `all`, or a list. Data need the order of events."""
    popularity_half_life: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Days after which an event counts half in the popularity of its item, with
    time_features."""
    user_ids: bool = True
    """Whether users have embeddings of their own. `false`: a user is what features, bags and
    events say, as for new users; needs biases=false."""
    biases: bool = True
    """Logits start at the training mean plus fitted user and item biases; the model learns
    the rest, in standard deviations of the labels. `false`, as in the paper: logits start at 0."""

    @model_validator(mode="after")
    def _user_ids_fit(self) -> ModelConfig:
        if not self.user_ids and self.biases:
            raise ValueError(
                "model.biases must be false with model.user_ids=false, got true, as user biases "
                "are of ids; add model.biases=false"
            )
        return self

    @property
    def eval_rows(self) -> int:
        """Consecutive rows that evaluation must not cut apart."""
        return 1

    @property
    def remarks(self) -> list[str]:
        """Warnings about allowed settings, printed before training; one line each."""
        return []

    @property
    def idle_penalties(self) -> tuple[str, dict[str, str]]:
        """Whose penalties cannot act with these settings, and why in words after "which"."""
        return f"model {self.name}", dict.fromkeys(PENALTY_NAMES, "has no routers")

    def check_tasks(self, num_tasks: int) -> None:
        """Raise ConfigError where these settings cannot work with so many tasks."""

    @property
    def chosen_times(self) -> tuple[str, ...]:
        """Names in `time_features`, in the order of TIME_FEATURES."""
        wanted = self.time_features
        return tuple(one for one in TIME_FEATURES if wanted == "all" or one in (*wanted,))

    @property
    def reads_events(self) -> bool:
        """Does a request need the events of its user?"""
        return self.sequence != "none" or not {"gap", "events"}.isdisjoint(self.chosen_times)

    @property
    def reads_items(self) -> bool:
        """Does a request need age or popularity of items?"""
        return not {"age", "popularity"}.isdisjoint(self.chosen_times)

    @property
    def reads_past(self) -> bool:
        """Does a row need what was before it?"""
        return self.sequence != "none" or bool(self.chosen_times)

    @property
    def has_encoders(self) -> bool:
        """Whether users and items have features or bags besides the embeddings of their ids."""
        return any(one != "none" for one in (self.features, self.item_bag, self.user_bag))
