"""The LightningDataModule: batches of a prepared folder, in memory or streamed from disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning

from recsys_moe.config.command_line import Sections
from recsys_moe.config.diff import differences, shown
from recsys_moe.config.encoders import chosen_context, chosen_features, numbers_a_row
from recsys_moe.config.past import Past
from recsys_moe.config.settings import Config, as_config
from recsys_moe.data.batches import EvalBatches, TrainBatches, batches_per_epoch
from recsys_moe.data.columns import Rows
from recsys_moe.data.negatives import ResampledNegatives
from recsys_moe.data.rows import Batch, Columns
from recsys_moe.data.streaming import StreamBatches, open_rows, rows_within
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema, check_split
from recsys_moe.seeds import stream_seed
from recsys_moe.train.workarounds import first_batch


class RecDataModule(lightning.LightningDataModule):
    """Batches of a prepared folder for Lightning's loops.

    Training shuffles anew in every epoch, and draws new negatives where `data.resample_negatives`
    asks for it. `trainer.batch_size` is what all processes take together.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Sections | Config | dict[str, Any] | str | Path | None = None,
        *,
        predict_split: str = "test",
    ) -> None:
        """`folder`: written by `recsys-moe prepare`. `config`: the one of the RecModule that is
        trained, which is taken where there is none. `predict_split`: the rows of Trainer.predict.

        Raises ConfigError, and DataError for a folder that was not prepared.
        """
        super().__init__()
        check_split("predict_split", predict_split)
        self.folder = Path(folder)
        self.predict_split = predict_split
        self._given = None if config is None else as_config(config)
        self.config = self._given or Config()
        self.schema = Schema.load(self.folder)
        self._rows: dict[str, Rows] = {}

    def setup(self, stage: str) -> None:
        """Take the configuration of the module. Raises ConfigError for another one given here."""
        assert self.trainer is not None
        wanted = getattr(self.trainer.lightning_module, "config", None)
        if not isinstance(wanted, Config) or wanted == self.config:
            return
        if self._given is not None:
            own, theirs = (config.model_dump(mode="json") for config in (self._given, wanted))
            key, both = next(iter(differences(own, theirs).items()))
            raise ConfigError(
                f"RecDataModule must have the configuration of RecModule, {key}={shown(both, 'b')},"
                f" got {shown(both, 'a')}; leave config out of RecDataModule"
            )
        self.config = wanted
        self._rows.clear()
        for name in ("_negatives", "_features_only"):
            self.__dict__.pop(name, None)

    def rows(self, split: str) -> Rows:
        """A split, opened once: in memory where it fits (training: in the shuffle buffer)."""
        if split not in self._rows:
            memory = self.config.data.max_memory_mb
            most = self.window if split == "train" else self._rows_within(memory)
            read: dict[str, Any] = {"context": chosen_context(self.config, self.schema)}
            read["history"] = Past().of(self.config, self.folder, self.schema, split)
            self._rows[split] = open_rows(self.folder, self.schema, split, most, **read)
        return self._rows[split]

    def open(self) -> None:
        """Open what training reads, before anything is written. Raises ConfigError, DataError."""
        for split in ("train", "val"):
            self.rows(split)
        _ = self._negatives

    @property
    def window(self) -> int:
        """Rows of the shuffle buffer."""
        settings = self.config.data
        if settings.shuffle_buffer != "auto":
            return settings.shuffle_buffer
        shifted = bool(settings.popularity_exponent) or settings.user_exponent != 1
        return self._rows_within(settings.max_memory_mb, shifted)

    def _rows_within(self, megabytes: int, shifted: bool = False) -> int:
        numbers = numbers_a_row(self.config, self.schema)
        return rows_within(self.schema, megabytes, shifted=shifted, context=numbers)

    def train_dataloader(self) -> EachEpoch:
        return EachEpoch(self)

    @property
    def _share(self) -> tuple[int, int]:
        """Which process of how many this is."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def train_batches(
        self, epoch: int, *, rank: int = 0, world: int = 1, start: int = 0
    ) -> TrainBatches | StreamBatches:
        """Batches of an epoch for process `rank` of `world`, from batch `start` on.

        `trainer.batch_size` is what all processes take together.
        """
        rows, settings = self._training_rows(epoch), self.config
        seed = stream_seed(settings.trainer.seed, "shuffle", epoch)
        size, rate = settings.trainer.batch_size // world, settings.data.id_dropout
        ids_only = settings.model.has_encoders
        draws: dict[str, Any] = {"id_dropout": rate, "ids_only": ids_only, "seed": seed}
        draws["features_only"] = self._features_only
        draws["context_dropout"] = settings.data.context_dropout
        draws["events_dropout"] = settings.data.events_dropout
        share: dict[str, Any] = {"rank": rank, "world": world, "start": start}
        if isinstance(rows, Columns):
            return TrainBatches(rows, self.schema, size, **draws, **share)
        return StreamBatches(rows, self.schema, size, **draws, **share, window=self.window)

    @cached_property
    def _features_only(self) -> tuple[float, float]:
        """`data.features_only_rate` of users and of items, 0 where these have no features."""
        rate, chosen = (
            self.config.data.features_only_rate,
            chosen_features(self.config, self.schema),
        )
        return (rate if chosen["user"] else 0.0, rate if chosen["item"] else 0.0)

    def _training_rows(self, epoch: int) -> Rows:
        if self._negatives is None:
            return self.rows("train")
        return self._negatives.rows_of(stream_seed(self.config.trainer.seed, "negatives", epoch))

    @cached_property
    def _negatives(self) -> ResampledNegatives | None:
        """With data.resample_negatives. Raises ConfigError."""
        if not self.config.data.resample_negatives:
            return None
        settings = self.config.data
        powers = settings.popularity_exponent, settings.user_exponent
        return ResampledNegatives(self.rows("train"), self.schema, *powers)

    def val_dataloader(self) -> EvalBatches | NoRows:
        return self._in_order("val", by_user=True)

    def test_dataloader(self) -> EvalBatches | NoRows:
        return self._in_order("test", by_user=True)

    def predict_dataloader(self) -> EvalBatches | NoRows:
        return self._in_order(self.predict_split)

    def _in_order(self, split: str, by_user: bool = False) -> EvalBatches | NoRows:
        share: dict[str, Any] = dict(zip(("rank", "world"), self._share, strict=True))
        batches = EvalBatches(self.rows(split), self.config.eval_rows, by_user=by_user, **share)
        return batches if len(batches) else NoRows(self.rows(split))

    def val_batches(self, *, rank: int = 0, world: int = 1) -> EvalBatches:
        """Batches of the validation split: part `rank` of `world`."""
        rows = self.rows("val")
        return EvalBatches(rows, self.config.eval_rows, by_user=True, rank=rank, world=world)


class EachEpoch:
    """The batches of the epoch that the Trainer is in, from the first that it has not done on.

    Lightning asks for a loader once, and iterates over it in every epoch.
    """

    def __init__(self, data: RecDataModule) -> None:
        self.data = data
        rank, world = data._share
        self.share = {"rank": rank, "world": world}
        rows, size = len(data.rows("train")), data.config.trainer.batch_size
        self.batches = batches_per_epoch(rows, size // world, world)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        # Asked at the first batch: only then has a resumed Trainer found its place.
        trainer, epoch, start = self.data.trainer, 0, 0
        if trainer is not None and not getattr(trainer, "overfit_batches", 0):  # which repeats some
            epoch, start = trainer.current_epoch, first_batch(trainer)
        yield from self.data.train_batches(epoch, **self.share, start=start)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: where to continue is the Trainer's. It tells Lightning that this can."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `state_dict`."""


class NoRows:
    """One empty batch: without any, Lightning would skip the loop of this process alone."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Batch]:
        yield self.rows.group(0).take(slice(0))
