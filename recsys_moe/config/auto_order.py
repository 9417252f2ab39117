"""Settings for a log whose order is kept: `prepare --protocol time` and `leave-last`.

They are those of `movielens_1m_next` and `movielens_100k_time`, as functions of the data, and come
before the rules for any log. Evidence is in research/defaults.md.
"""

from __future__ import annotations

import math

from recsys_moe.config.auto_rules import FEW_ROWS, MANY_ROWS, Facts, unusual_labels
from recsys_moe.kinds import kind_of
from recsys_moe.model.registry import DEFAULT_MODEL
from recsys_moe.schema import Schema

FEW_EVENTS = 3.0
"""Events of a user in training, on average, below which there is no order to learn from."""
MANY_NEW = 0.4
"""Share of later rows that are of users without a training row: ids would hide what events say."""
NEW_USERS = 0.02
"""Share of training rows that are as of a user without events."""
FAINT = 0.03
"""Of `model.sequence_gain` (research/defaults.md)."""
LEAST_STEPS = 390
"""Of training, on the smallest logs."""


def order_rule(facts: Facts) -> None:
    schema = facts.schema
    if not schema.events or ":" in str(facts.values.get("model.name", DEFAULT_MODEL)):
        return
    mean, why = _events(schema, "train") / max(schema.user.trained, 1), "events a user in training"
    has_order, is_small = mean >= FEW_EVENTS, facts.rows < FEW_ROWS
    why += "; rows are judged in their order" if has_order else ": too few to have an order"
    facts.choose("model.sequence", "lru" if has_order else "none", f"{mean:.1f} {why}")
    reads_order = facts.values["model.sequence"] != "none"
    if is_small or not (has_order or reads_order):
        why = "what is popular changes, and little else tells what comes next"
        facts.choose("model.time_features", ("popularity",), why)
    if reads_order:
        _sequence(facts)
    if facts.follows_order:
        _bags(facts)
        _users(facts)
        _sizes(facts)
        _training(facts)


def _events(schema: Schema, split: str) -> float:
    """Positives, or labelled rows where there is no binary task."""
    counts = schema.labels.get(split, {}).values()
    return max((float(one.get("positive", one.get("labelled", 0))) for one in counts), default=0.0)


def _sequence(facts: Facts) -> None:
    dropout = 0.3 if facts.rows >= MANY_ROWS else 0.4
    facts.choose("model.sequence_length", 200, "the last events; longer ones rarely say more")
    facts.choose("model.sequence_blocks", 2, "as in the recipes")
    facts.choose("model.sequence_dropout", dropout, f"{facts.rows:,} rows")
    weight, why = _next_item(facts)
    facts.choose("model.next_item_weight", weight, why)
    if facts.positive is None or facts.has_own_negatives:
        why = "no negatives are drawn: a loud encoder would learn rows by heart"
        facts.choose("model.sequence_gain", FAINT, why)
    why = "rows of one second do not see each other; log, if the rows are in their true order"
    facts.choose("data.tie_rule", "strict", why)


def _next_item(facts: Facts) -> tuple[float, str]:
    if facts.positive is None or facts.values.get("model.bilinear_rank") == 0:
        return 0.0, "no product to rank"
    if facts.has_own_negatives:
        return 0.0, "what comes next is not what is liked"
    return 1.0, "without it an encoder learns little about order"


def _bags(facts: Facts) -> None:
    for bag in ("item_bag", "user_bag"):
        facts.choose(f"model.{bag}", "none", "bags know no time: in training they hold later rows")


def _users(facts: Facts) -> None:
    """Whether users have embeddings and biases of their own."""
    share, unusual = new_rows(facts.schema), unusual_labels(facts)
    why = f"about {share:.0%} of later rows are of users new to training"
    if share >= MANY_NEW and unusual:
        why = f"{unusual}; biases are of ids"
    has_ids = share < MANY_NEW or bool(unusual)
    facts.choose("model.user_ids", has_ids and facts.values.get("model.biases", True), why)
    facts.choose("model.biases", facts.values["model.user_ids"], why)
    if share >= MANY_NEW:
        facts.choose("data.events_dropout", NEW_USERS, "some of them ask before their first event")


def new_rows(schema: Schema) -> float:
    """Share of the validation and test rows of users without a training row, roughly: as if these
    users had as many events as others."""
    users = schema.user
    later = _events(schema, "val") + _events(schema, "test")
    rows = (users.size - users.trained) * _events(schema, "train") / max(users.trained, 1)
    return min(rows / later, 1.0) if later else 0.0


def _sizes(facts: Facts) -> None:
    why = "what is read of the events does not need more"
    width = 96 if facts.rows >= MANY_ROWS else 64
    facts.choose("model.embedding_dim", width, f"{facts.rows:,} rows")
    facts.choose("model.expert_dim", 64, why)
    facts.choose("model.tower_dims", [32], why)
    facts.choose("model.dropout", 0.2, "most rows share a few windows, which have their dropout")


def _training(facts: Facts) -> None:
    many = facts.rows >= MANY_ROWS
    batch = min(max(2 ** round(math.log2(facts.rows / 128)), 128), 4096)
    facts.choose("trainer.batch_size", batch, "about 128 steps an epoch, or more")
    facts.choose("optim.lr", 3e-3, "as in the recipes; less leaves small logs where they began")
    facts.choose("optim.weight_decay", 0.0, "dropout and the next-item loss do its work")
    window = 200 if many else 100
    facts.choose("optim.ema_decay", 1 - 1 / window, f"a mean over the last {window} steps")
    facts.choose("optim.router_lr_multiplier", 1.0, "as in the recipes")
    epochs = 12 if many else 10 if facts.values["model.user_ids"] else 6
    epochs = max(epochs, math.ceil(LEAST_STEPS / facts.steps))
    facts.choose("trainer.max_epochs", epochs, f"length of the cosine; an epoch has {facts.steps}")
    if facts.schema.negatives == "uniform":
        facts.choose("data.popularity_exponent", 0.0, "the next-item loss is over all items")
        facts.choose("data.user_exponent", 1.0, "negatives as at the time of a positive")
    _judge(facts)


def _judge(facts: Facts) -> None:
    """Which epoch is kept, and what ratings weigh beside the next-item loss."""
    tasks = facts.schema.tasks
    if (first := facts.positive) is None:
        return
    metric = f"{tasks[first].name}/{kind_of(tasks[first]).headline}"
    if facts.rows >= FEW_ROWS:
        why = "the order of items counts, not the size of logits"
        facts.choose("trainer.monitor", metric, why)
    if not facts.values["model.user_ids"]:
        for task in tasks:
            if kind_of(task).is_rating:
                key = f"tasks.{task.name}.training_weight"
                facts.choose(key, 2.0, "beside the next-item loss")
