"""How an evaluation reads the past of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recsys_moe.config.settings import Config
from recsys_moe.data.histories import read_log
from recsys_moe.data.item_past import ItemPast
from recsys_moe.data.rows import History, Timelines
from recsys_moe.errors import ConfigError
from recsys_moe.schema import EVENT, SPLITS, Schema

HISTORIES, TIE_RULES = ("running", "frozen"), ("strict", "log", "shuffle")
LISTS = ("user", "last", "successive")
OVERLAP = 4
"""Windows of an evaluation that hold an event, at most. With one for each row an event of a long
history would be encoded `sequence_length` times; so rows see at least three quarters of that."""
SEED = 0
"""Of the order of events of one second under `shuffle`."""


@dataclass(frozen=True)
class Past:
    """Options of `evaluate`; None: not given."""

    history: str | None = None
    """`running`: rows see all that was before them; `frozen`: what is in earlier splits."""
    tie_rule: str | None = None
    """`strict`: nothing of the same second; `log`: what the log has before; `shuffle`: the same,
    with the events of one second in random order. None: as in training."""

    lists: str | None = None
    """`user`: each user has a list, from before the first relevant row; `successive`: each relevant
    row has one, without what the user had before; `last`: of these each user's last one."""

    @property
    def has_rows(self) -> bool:
        """Whether a list is of one relevant row."""
        return self.lists in LISTS[1:]

    def check(self, config: Config, split: str) -> None:
        """Raises ConfigError for an unknown value, and for options that nothing reads."""
        _one_of("--history", self.history, HISTORIES)
        _one_of("--tie-rule", self.tie_rule, TIE_RULES)
        _one_of("--lists", self.lists, LISTS)
        for option, value in (("--history", self.history), ("--tie-rule", self.tie_rule)):
            read = config.model.reads_past or (self.has_rows and option != "--history")
            if value is not None and not read:
                raise ConfigError(
                    f"{option} {value} needs a model that reads events, got model.sequence: none; "
                    "leave the option out, or train with --set model.sequence=lru"
                )
        if self.history == "frozen" and split == SPLITS[0]:
            raise ConfigError(
                f"--history frozen needs a split with one before it, got --split {split}; use "
                "--split val or test"
            )

    def of(
        self, config: Config, folder: Path, schema: Schema, split: str = "train"
    ) -> History | None:
        """What rows of a split see: those of training other training rows, whatever the split is
        by; `split` also tells what `frozen` leaves out.

        None for a model that reads neither events nor time. Raises ConfigError and DataError.
        """
        model = config.model
        if not model.reads_past:
            return None
        place = SPLITS.index(split)
        splits = SPLITS[:place] if self.history == "frozen" else SPLITS if place else SPLITS[:1]
        ties = self._ties(config)
        log = read_log(folder, schema, splits)
        if ties == "shuffle":
            log = log.shuffled(SEED)
        items = None
        if model.reads_items:
            items = ItemPast(log, schema.item.size, model.popularity_half_life)
        reads = {"has_windows": model.sequence != "none", "has_moments": bool(model.chosen_times)}
        step = -(-model.sequence_length // OVERLAP)
        timelines = Timelines(log, model.sequence_length, step, **reads, items=items)
        return History(timelines, "strict" if ties == "strict" else "log")

    def seen(self, config: Config, folder: Path, schema: Schema) -> History | None:
        """What was before rows in the log, whatever the model reads; None where no list asks.

        Raises ConfigError for a folder without the order of events.
        """
        if not self.has_rows:
            return None
        if not schema.events:
            raise ConfigError(
                f"--lists {self.lists} needs prepared data with times in order (column {EVENT}), "
                f"got {folder} of --protocol {schema.protocol}; prepare with --protocol time or "
                "leave-last"
            )
        log, ties = read_log(folder, schema), self._ties(config)
        timelines = Timelines(log.shuffled(SEED) if ties == "shuffle" else log, 1)
        return History(timelines, "strict" if ties == "strict" else "log")

    def _ties(self, config: Config) -> str:
        """As asked for; else as in training, and of a model that reads no events the log's."""
        trained = config.data.tie_rule if config.model.reads_past else "log"
        return self.tie_rule or trained

    def described(self, config: Config) -> dict[str, str]:
        """What `evaluate --json` says of it: what was read, and nothing else."""
        ties = {"tie_rule": self._ties(config)}
        if not config.model.reads_past:
            return ties if self.has_rows else {}
        return {"history": self.history or HISTORIES[0], **ties}


def _one_of(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise ConfigError(f"{option} must be {', '.join(known[:-1])} or {known[-1]}, got {value!r}")
