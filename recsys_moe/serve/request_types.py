"""Types of request fields: ids, new users and items.

Strict: a bool is not a number, "5" is not a valid k, 1.5 is not an id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from recsys_moe import raw_ids
from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.whom import ColdUser
from recsys_moe.inference.events.observed import GivenEvent, ReadEvents, read_plain

INTEGER = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
RULE = "rule"
"""Error type of a `Rule`."""


@dataclass(frozen=True)
class Rule:
    """One message for a union, instead of one for each member."""

    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), RULE, custom_error_message=self.words
        )


WholeNumber = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[StrictStr, Field(max_length=512)]


ID_RULE = "must be an id: text of 1 to 512 characters, not blank, or a whole number of 64 bits"
ID_SCHEMA = {"anyOf": [INTEGER, {"type": "string", "maxLength": 512, "pattern": r"\S"}]}


def _id(value: Any) -> int | str:
    """A text, or 7.0 as the whole number 7, which is an integer in JSON Schema too."""
    if isinstance(value, str) and len(value) <= 512 and raw_ids.of_text(value) is not None:
        return value
    if isinstance(value, float) and raw_ids.of_value(value) is not None:
        return int(value)
    raise PydanticCustomError(RULE, ID_RULE)


if TYPE_CHECKING:  # which does not see what a validator returns
    Id = int | str
else:
    Id = Annotated[
        WholeNumber | Annotated[Any, PlainValidator(_id)],
        Field(union_mode="left_to_right"),  # most ids are numbers, which no Python looks at
        Rule(ID_RULE),
        WithJsonSchema(ID_SCHEMA),
    ]
"""A raw id; 7, 7.0 and "7" are the same id, as everywhere."""
Columns = Annotated[
    list[Text],
    Field(max_length=16, examples=[[]], description="Item columns to return with each item."),
]
LARGEST_EXACT = 2**53 - 1
"""JavaScript and many JSON readers round larger whole numbers."""


def exact(raw: Any) -> Any:
    """The id, as text if it is larger than `LARGEST_EXACT`; both are the same id."""
    return str(raw) if isinstance(raw, int) and abs(raw) > LARGEST_EXACT else raw


ShownId = Annotated[int | str, BeforeValidator(exact)]
ShownValue = Annotated[str | int | float | None, BeforeValidator(exact)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @property
    def rows(self) -> int:
        """Pairs or users, by which waiting requests are counted."""
        return 1


Number = WholeNumber | Annotated[StrictFloat, Field(allow_inf_nan=False)]
FeatureValue = Annotated[
    StrictBool | Number | Text | list[Text | WholeNumber] | None,
    Rule("must be text, a finite number, true, false, null, or a list of texts and whole numbers"),
]
Features = dict[Text, FeatureValue]
Rating = Annotated[Number | None, Rule("must be a finite number, or null")]
Seconds = Annotated[Number, Rule("must be seconds since 1970 (UTC), a finite number")]


ContextValue = Annotated[
    StrictBool | Number | Text | None, Rule("must be text, a finite number, true, false, or null")
]
ContextValues = dict[Text, ContextValue]


def _context_tag(value: Any) -> str | None:
    if isinstance(value, list):
        return "each"
    return "all" if isinstance(value, dict) else None


Context = Annotated[
    Annotated[ContextValues, Tag("all")] | Annotated[list[ContextValues], Tag("each")],
    Discriminator(
        _context_tag,
        custom_error_type=RULE,
        custom_error_message="must be an object of context features, or a list of one per row",
    ),
]


def _history_tag(value: Any) -> str | None:
    if isinstance(value, list):
        return "items"
    return "ratings" if isinstance(value, dict) else None


History = Annotated[
    Annotated[list[Id], Tag("items")] | Annotated[dict[Text, Rating], Tag("ratings")],
    Discriminator(
        _history_tag,
        custom_error_type=RULE,
        custom_error_message="must be a list of item ids, or an object of item id -> rating",
    ),
]


class OwnEvent(Request):
    """What the user of a request did."""

    item: Id = Field(examples=[2])
    """Item id."""
    time: Seconds = Field(examples=[978130092])
    """Seconds since 1970 (UTC)."""
    value: Rating = None
    """The rating, in the unit of the training data."""
    id: Id | None = None
    """What a second delivery is known by; by default the item and the time."""


class UserEvent(OwnEvent):
    """What a user did."""

    user: Id = Field(examples=[1])
    """User id."""


def _events_tag(value: Any) -> str | None:
    if not isinstance(value, list):
        return None
    return "each" if value and isinstance(value[0], list | None) else "all"


def _read_at_once(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Ordinary events need no object for each; all others are checked one by one."""
    found = read_plain(value)
    return handler(value) if found is None else found


OwnEvents = Annotated[
    Annotated[list[OwnEvent], Tag("all")] | Annotated[list[list[OwnEvent] | None], Tag("each")],
    Discriminator(
        _events_tag,
        custom_error_type=RULE,
        custom_error_message="must be a list of events, or a list of such lists, one per row",
    ),
    WrapValidator(_read_at_once),
]


class NewItem(Request):
    """An item that is not in the training data."""

    features: Features = Field(default={}, examples=[{}])
    """By name: a text, a number, a list of texts or whole numbers, or null if missing."""


class NewUser(Request):
    """A user who is not in the training data."""

    features: Features = Field(default={}, examples=[{}])
    """By name: a text, a number, a list of texts or whole numbers, or null if missing."""
    history: History = Field(default=[], examples=[[]])
    """Ids of items the user interacted with, or an object of id -> rating (null: not rated)."""
    events: list[OwnEvent] = Field(default=[], examples=[[]])
    """What the user did, for models that read events."""


def _tag(value: Any) -> str:
    return "new" if isinstance(value, dict | Request) else "id"


if TYPE_CHECKING:
    User = int | str | NewUser
    NamedItem = int | str | NewItem
else:
    User = Annotated[Annotated[Id, Tag("id")] | Annotated[NewUser, Tag("new")], Discriminator(_tag)]
    NamedItem = Annotated[
        Annotated[Id, Tag("id")] | Annotated[NewItem, Tag("new")], Discriminator(_tag)
    ]
"""A raw id, or the features and history of a new one."""


def whom(asked: Iterable[User | NamedItem]) -> list[int | str | ColdUser]:
    """Ids and cold-start users for the predictor."""
    return [_cold_user(one) if isinstance(one, Request) else one for one in asked]


def _cold_user(one: NewUser | NewItem) -> ColdUser:
    if not isinstance(one, NewUser):
        return ColdUser(one.features)
    return ColdUser(one.features, one.history, plain_events(one.events))  # type: ignore[arg-type]


def plain_events(events: Iterable[OwnEvent]) -> list[GivenEvent]:
    """For the predictor, which checks them."""
    return [vars(one) for one in events]


def events_of(given: OwnEvents | ReadEvents, rows: int) -> list[Any]:
    """For the predictor: one list of all rows, or a list of each. Raises DataError."""
    if isinstance(given, ReadEvents):
        return given
    if not given or isinstance(given[0], OwnEvent):
        return plain_events(given)  # type: ignore[arg-type]
    if len(given) != rows:
        raise DataError(f"events must be of all rows or a list per row ({rows}), got {len(given)}")
    return [plain_events(one or ()) for one in given]


def events_by_row(given: OwnEvents | ReadEvents, rows: int) -> list[list[GivenEvent]]:
    """A list of each row, the same one where they have one. Raises DataError."""
    found = events_of(given, rows)
    return found if found and isinstance(found[0], list) else [found] * rows


def shown(one: User | NamedItem) -> int | str | None:
    """The id to return; null for a new user or item."""
    return None if isinstance(one, Request) else one
