"""What requests name: ids, and cold-start users with what is told of them.

Strict: a bool is no number, "5" is no k, 1.5 is no id.
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
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from recsys_moe import raw_ids
from recsys_moe.inference.cold_start.encode import ColdUser

INTEGER = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
RULE = "rule"
"""Type of the fault that a `Rule` finds."""


@dataclass(frozen=True)
class Rule:
    """What a union asks for, in place of a sentence by each of its members."""

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
    """A text, or the whole number that 7.0 is, which is an integer in JSON Schema too."""
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
    Field(max_length=16, examples=[[]], description="Columns of the items to give along."),
]
LARGEST_EXACT = 2**53 - 1
"""JavaScript, and much else that reads JSON, rounds larger whole numbers."""


def exact(raw: Any) -> Any:
    """An id as JSON can carry it everywhere: a large number as text, which is the same id."""
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


def _history_tag(value: Any) -> str | None:
    if isinstance(value, list):
        return "items"
    return "ratings" if isinstance(value, dict) else None


History = Annotated[
    Annotated[list[Id], Tag("items")] | Annotated[dict[Text, Rating], Tag("ratings")],
    Discriminator(
        _history_tag,
        custom_error_type=RULE,
        custom_error_message="must be a list of ids, or an object with the rating of each",
    ),
]


class NewItem(Request):
    """An item that training has not seen."""

    features: Features = Field(default={}, examples=[{}])
    """By name: text or a whole number, a list of them, or a number; null where it is missing."""


class NewUser(Request):
    """A user that training has not seen."""

    features: Features = Field(default={}, examples=[{}])
    """By name: text or a whole number, a list of them, or a number; null where it is missing."""
    history: History = Field(default=[], examples=[[]])
    """Raw ids of items, or an object with the rating of each (null: watched, not rated)."""


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
"""A raw id, or what is told of one that training has not seen."""


def whom(asked: Iterable[User | NamedItem]) -> list[int | str | ColdUser]:
    """As the predictor takes them."""
    return [_cold_user(one) if isinstance(one, Request) else one for one in asked]


def _cold_user(one: NewUser | NewItem) -> ColdUser:
    history = one.history if isinstance(one, NewUser) else []
    return ColdUser(one.features, history)  # type: ignore[arg-type]


def shown(one: User | NamedItem) -> int | str | None:
    """The id to answer with; cold-start users have none."""
    return None if isinstance(one, Request) else one
