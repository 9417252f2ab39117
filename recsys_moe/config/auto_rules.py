"""The rules by which the data decide settings: what the recipes of configs/ have in common, by
sizes and kinds of labels. Evidence is in research/defaults.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from recsys_moe.config.encoders import is_readable
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import kind_of, positive_task, rating_task
from recsys_moe.machine import trains_in_bf16
from recsys_moe.model.moe_settings import DEFAULT_ROUTER
from recsys_moe.model.registry import DEFAULT_MODEL, find_model
from recsys_moe.model.settings import ModelConfig
from recsys_moe.routers import find_router
from recsys_moe.schema import Schema

FEW_ROWS = 30_000
"""Rows below which a sampled router learns too little before the rest overfits."""
INSTEAD = "; without it, few rows get softmax"
"""Ends the reason of a router that the data alone would not get."""
MANY_ROWS = 1_000_000
LARGE = 10_000_000
"""Rows from which on the size of tables decides (research/large_data.md)."""
TABLE_BYTES = 4 * 2**30
"""Most memory of all tables with their gradients, Adam's moments and average, on a large log."""
MOST_BATCH = 1 << 16
SPARSE = 5
"""Labels per user and item below which their means say most of what can be learned."""
USUAL_STD, USUAL_MEAN = (0.5, 2.0), 6.0
"""Labels of a regression that a model can learn from 0 without fitted means."""


class Choice(NamedTuple):
    """A setting, the value that suits the data, and why."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={json.dumps(self.value).strip(chr(34))}: {self.why}"


@dataclass
class Facts:
    """What the rules read: the data, and what is given or chosen so far."""

    schema: Schema
    values: dict[str, Any]
    choices: list[Choice] = field(default_factory=list)

    def choose(self, key: str, value: Any, why: str) -> None:
        """Unless the setting is given, or is none of the model's."""
        if key not in self.values:
            self.values[key] = value
            if self._is_known(key):
                self.choices.append(Choice(key, value, why))

    def _is_known(self, key: str) -> bool:
        """Of another model than the default one, what all models have means the same."""
        section, name, *_ = key.split(".")
        if section != "model" or self._model == DEFAULT_MODEL:
            return True
        return (
            name in ModelConfig.model_fields and name in find_model(self._model).Config.model_fields
        )

    @cached_property
    def _model(self) -> str:
        return str(self.values.get("model.name", DEFAULT_MODEL))

    @cached_property
    def rows(self) -> int:
        return max(self.schema.rows.get("train", 0), 1)

    @property
    def reads_order(self) -> bool:
        """Whether the model reads events in their order."""
        return bool(self.values.get("model.sequence", "none") != "none")

    @property
    def follows_order(self) -> bool:
        """Whether that decides the other settings: not where the log has negatives of its own."""
        return self.reads_order and not self.has_own_negatives

    @property
    def has_own_negatives(self) -> bool:
        return self.positive is not None and self.schema.negatives is None

    @cached_property
    def positive(self) -> int | None:
        """The task whose positives are the events."""
        return positive_task(self.schema.tasks)

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return math.ceil(self.rows / self.values["trainer.batch_size"])

    @cached_property
    def ids(self) -> int:
        """Of users and items."""
        return self.schema.user.size + self.schema.item.size

    @cached_property
    def ratings(self) -> list[dict[str, float]]:
        """Counts of the training labels of each task whose labels lie on a scale."""
        tasks = [task.name for task in self.schema.tasks if kind_of(task).is_rating]
        return [self.schema.labels.get("train", {}).get(name, {}) for name in tasks]

    @cached_property
    def positives_per_id(self) -> float:
        """Positives, or labelled rows where there is no binary task, per user and item."""
        counts = self.schema.labels.get("train", {}).values()
        known = [float(one.get("positive", one.get("labelled", 0))) for one in counts]
        return max(known, default=0.0) / max(self.schema.user.trained + self.schema.item.trained, 1)


def _batches(facts: Facts) -> None:
    processes = math.prod(facts.values.get(f"trainer.{n}", 1) for n in ("devices", "num_nodes"))
    power = 2 ** round(math.log2(facts.rows / 64))
    size, why = min(max(power, 128), 2048), f"about 64 steps an epoch of {facts.rows:,} rows"
    if facts.rows >= LARGE and facts.ids > 64 * size:
        size = min(2 ** round(math.log2(facts.ids / 64)), MOST_BATCH)
        why = f"a step moves tables of {facts.ids:,} ids"
    size = -(-size // processes) * processes
    facts.choose("trainer.batch_size", size, why)


def _router(facts: Facts) -> None:
    few = facts.rows < FEW_ROWS
    own = [key for key in facts.values if key.startswith("model.router.")]
    name = "softmax" if few and not own else DEFAULT_ROUTER
    why = "few rows: a sampled router learns late" if few else "sparse, and ends ahead of topk"
    facts.choose("model.router.name", name, f"{own[0]} is given{INSTEAD}" if few and own else why)
    facts.choose("model.num_experts", 4 if few else 16, f"{facts.rows:,} rows")
    try:
        settings = find_router(facts.values["model.router.name"]).Config.model_fields
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if "k" in settings:
        k = min(
            3 if facts.rows >= MANY_ROWS and not facts.follows_order else 2,
            facts.values["model.num_experts"],
        )
        facts.choose("model.router.k", k, "3 from a million rows on, else 2")
    is_moesart = facts.values["model.router.name"] == "moesart"
    if is_moesart and not (facts.values["model.biases"] or facts.follows_order):
        why = "experts differ sooner than with a sharper softmax"
        facts.choose("model.router.temperature", 1.0, why)


def _widths(facts: Facts) -> None:
    few, why = facts.rows < FEW_ROWS, f"{facts.rows:,} rows"
    # An embedding, and two in bags with ratings: weights, gradients, two moments and the average.
    most = max(TABLE_BYTES // (3 * max(facts.ids, 1) * 5 * 4), 16)
    if facts.rows >= LARGE and most < 128:
        why_width = f"tables of {facts.ids:,} ids take {TABLE_BYTES // 2**30} GiB in training"
        facts.choose("model.embedding_dim", 2 ** int(math.log2(most)), why_width)
    facts.choose("model.embedding_dim", 64 if few else 128, why)
    facts.choose("model.expert_dim", 64 if few else 256, why)
    facts.choose("model.tower_dims", [64] if few else [256], why)
    width = facts.values["model.embedding_dim"]
    facts.choose("model.bilinear_rank", width, "as wide as the embeddings")
    if facts.values["model.bilinear_rank"]:
        why = "weight decay limits it as in matrix factorisation"
        facts.choose("model.bilinear_diagonal", True, why)


def _tables(facts: Facts) -> None:
    schema = facts.schema
    if schema.user_features or schema.item_features:
        facts.choose("model.features", "all", "the data have features")
    context = tuple(one.name for one in schema.context_features if is_readable(one))
    if context:
        facts.choose("model.context", context, "the data have context features")
    kind, why = "ratings", "SVD++; a rating says more than its row"
    if not facts.ratings:
        kind, why = "", "SVD++; there are no ratings"
    elif len(facts.ratings) > 1 and (first := rating_task(schema.tasks)) is not None:
        why += f"; those of {schema.tasks[first].name}, the first --task with ratings"
    facts.choose("model.item_bag", kind or "items", why)
    facts.choose("model.user_bag", kind or "users", why)
    has_bags = {facts.values[f"model.{bag}"] for bag in ("item_bag", "user_bag")} != {"none"}
    if has_bags:
        facts.choose("model.bag_dim", 0, "without a projection, which would escape weight decay")
    if has_bags and facts.ratings:
        facts.choose("model.bag_ratings", "linear", "all ratings train both embeddings of an item")
    needed, why = _fitted_means(facts)
    if facts.values.get("model.user_ids") is False:
        needed, why = False, "biases are of ids"
    facts.choose("model.biases", needed, why)


def _fitted_means(facts: Facts) -> tuple[bool, str]:
    if why := unusual_labels(facts):
        return True, why
    if facts.positives_per_id < SPARSE:
        return True, f"{facts.positives_per_id:.1f} positives per user and item: means say most"
    return False, "the model learns the means of users and items itself"


def unusual_labels(facts: Facts) -> str:
    """Why labels need fitted means; empty where they do not."""
    for counts in facts.ratings:
        mean, std = counts.get("mean", 0.0), counts.get("std", 1.0)
        if std and not USUAL_STD[0] <= std <= USUAL_STD[1] or abs(mean) > USUAL_MEAN:
            return f"a label has mean {mean:.3g} and deviation {std:.3g}: scaled to 0 and 1"
    if any(kind_of(task).headline == "d2" for task in facts.schema.tasks):
        return "counts or durations: without their means, those of new ids are far too small"
    return ""


def _negatives(facts: Facts) -> None:
    if facts.schema.negatives is None and positive_task(facts.schema.tasks) is not None:
        why = "negatives are those of the log: probabilities are of what was shown, lists of all"
        facts.choose("data.list_prior", 1.0, why)
    if facts.schema.negatives != "uniform":
        return
    why = "prepare drew the negatives uniformly: new ones prevent overfitting to those drawn"
    facts.choose("data.resample_negatives", True, why)
    if facts.values["data.resample_negatives"] is True:
        facts.choose("data.popularity_exponent", 0.75, "lists compete among popular items")
        facts.choose("data.user_exponent", 0.0, "every user counts alike in lists")


def _optimizer(facts: Facts) -> None:
    batch = facts.values["trainer.batch_size"]
    rate = round(4e-3 * math.sqrt(min(batch, 2048) / 2048), 5)
    facts.choose("optim.lr", rate, f"4e-3 for batches of 2048, by the root of {batch} / 2048")
    decay = float(f"{7e-5 * (157_500 / max(facts.rows, 1000)) ** 0.85:.1g}")
    why = f"{facts.rows:,} rows; 7e-5 for 157,500 and 1e-5 for 1.6 million"
    facts.choose("optim.weight_decay", decay, why)
    facts.choose("optim.schedule", "cosine", "the rate ends where training does")
    window = min(1.1 * facts.steps, 250)
    why = f"a mean over the last {window:.0f} steps; an epoch has {facts.steps}"
    facts.choose("optim.ema_decay", round(1 - 1 / max(window, 2), 3), why)
    facts.choose("optim.router_lr_multiplier", 10.0, "experts differ sooner")
    if facts.values["optim.schedule"] == "cosine":
        epochs = 20 if facts.rows >= MANY_ROWS else 24
        facts.choose("trainer.max_epochs", epochs, "length of the cosine")
        most = facts.values["trainer.max_epochs"]
        facts.choose("trainer.patience", 8, f"of {most} epochs: later ones are seldom better")


def _precision(facts: Facts) -> None:
    value, why = "32-true", ""
    if facts.rows < FEW_ROWS or facts.reads_order:
        why = "small products and recurrences are no faster in bfloat16"
    elif ":" in str(facts.values.get("model.name", DEFAULT_MODEL)):
        why = "whether a model of your own is right in bfloat16 is not known"
    elif not trains_in_bf16(facts.values.get("trainer.accelerator", "auto")):
        why = "no processor trains here that multiplies bfloat16"
    else:
        value = "bf16-mixed"
        why = "this processor multiplies bfloat16; weights, routers and losses stay in float32"
    facts.choose("trainer.precision", value, why)


RULES = (_batches, _tables, _router, _widths, _negatives, _optimizer, _precision)
"""Each reads what those before it chose."""
