"""The sections of a configuration other than `model`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from recsys_moe.config.text import weighting_schema
from recsys_moe.model.weighting import FixedConfig, WeightingConfig, weighting_config
from recsys_moe.section import Section


def _window(value: Any) -> Any:
    if value != "auto" and (type(value) is not int or value < 1):
        raise ValueError(
            f"data.shuffle_buffer must be auto or a number of rows >= 1, got {value!r}; "
            "e.g. data.shuffle_buffer=auto"
        )
    return value


def _switch_or_auto(value: Any) -> Any:
    """Switches as pydantic reads them."""
    if value != "auto":
        try:
            return TypeAdapter(bool).validate_python(value)
        except ValidationError:
            rule = f"trainer.cuda_graph must be auto, true or false, got {value!r}"
            raise ValueError(f"{rule}; e.g. trainer.cuda_graph=auto") from None
    return value


class DataConfig(Section):
    eval_batch_size: int = Field(default=2048, ge=1)
    """Rows per batch in validation and evaluation, rounded up to whole groups of
    `batchwise_rows`. Affects speed and memory, not results."""
    batchwise_rows: int = Field(default=128, ge=1)
    """Rows per batch of `loss_batchwise`, the paper's mean of per-batch losses."""
    id_dropout: float = Field(default=0.002, ge=0, lt=1)
    """Share of training rows whose user (and, independently, item) is replaced by the
    out-of-vocabulary (OOV) id, which trains its embedding. Half of them keep their features
    and bags."""
    features_only_rate: float = Field(default=0.1, ge=0, lt=1)
    """Share of training rows whose item (and, independently, user) loses its id and keeps its
    features, which trains them for new ids. Only where there are features."""
    context_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of training rows that lose context, which trains scores without it: half of them lose
    all features, the others each with probability 1/2. Only where the model reads context."""
    events_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of training rows that lose the events of their user, which trains predictions for
    users who have none yet. Only with model.sequence."""
    resample_negatives: bool = False
    """Draw new items for the negatives that `prepare` sampled in every epoch, among those that
    the user has no other training row with; for models that read order or time, among those that
    the log had by then and the user had not touched by then."""
    popularity_exponent: float = Field(default=0.0, ge=0, le=1)
    """Resampled negatives are drawn in proportion to (1 + other rows of the item) to this
    power; logits are corrected for it. 0: uniformly. Usual: 0.75."""
    user_exponent: float = Field(default=1.0, ge=-1, le=1)
    """Users get resampled negatives in proportion to their number of sampled ones to this
    power; logits are corrected for it. 1: as many as before; 0: the same number for every
    user, for better lists for users with short histories."""
    list_prior: float = Field(default=0.0, ge=0, le=1)
    """Lists rank by the logit of a binary or ranking task plus this times the log of one more than
    the training rows of an item. For logs with negatives of their own: probabilities are of items
    that were shown, and lists compare all items. Usual there: 1."""
    tie_rule: Literal["strict", "log"] = "strict"
    """Which events of the same second a row sees, with model.sequence: `strict`: none; `log`:
    those that the log has before it."""
    max_memory_mb: int = Field(default=4096, ge=1)
    """Memory for the rows of a split, in 2**20 bytes; larger splits are read from disk in
    every epoch."""
    shuffle_buffer: Annotated[Literal["auto"] | int, BeforeValidator(_window)] = "auto"
    """Training rows held and shuffled at once; `auto`: as many as fit in max_memory_mb. A
    buffer that holds all rows shuffles all of them."""

    @model_validator(mode="after")
    def _power_is_used(self) -> DataConfig:
        for name, idle in (("popularity_exponent", 0), ("user_exponent", 1)):
            power = getattr(self, name)
            if power != idle and not self.resample_negatives:
                raise ValueError(
                    f"data.{name} must be {idle} with data.resample_negatives=false, got "
                    f"{power:g}; add data.resample_negatives=true"
                )
        return self


class TaskConfig(Section):
    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False, examples=[0.9])
    """Weight of the task in the loss that selects epochs and judges results; null: the one in
    schema.json."""
    training_weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Weight of the task in the loss that training minimises (train/loss); null: `weight`."""


class TasksConfig(Section):
    """`weighting`, and a section for each task by its name in schema.json."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, TaskConfig]
    entry: ClassVar[type[Section]] = TaskConfig
    weighting: Annotated[
        SerializeAsAny[WeightingConfig],
        BeforeValidator(weighting_config),
        WithJsonSchema(weighting_schema()),
    ] = FixedConfig()
    """How training weighs the tasks: `fixed` (by `training_weight`), or a method that learns
    factors beside these. Validation keeps the fixed weights, so that epochs and runs compare."""

    @property
    def named(self) -> dict[str, TaskConfig]:
        """The sections of tasks."""
        return self.__pydantic_extra__


class PenaltyConfig(Section):
    trimmed_lasso: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the probability mass off the k largest experts, summed over tasks."""
    switch: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of Switch load balancing: 1 at balance, num_experts / k at collapse. With
    k = num_experts only the most probable expert counts; draws with replacement count each time.
    Usual: 0.01."""
    importance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the squared coefficient of variation (population variance) of the routing weights
    summed per expert. Usual: 0.005 to 0.1."""
    load: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the squared coefficient of variation (population variance) of the smooth load: the
    chance of each expert to be among the k if its noise of std 1/num_experts (or, with noisy topk,
    of the learned size) were drawn again. Usual: 0.005 to 0.1."""
    z_loss: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the mean squared log-sum-exp of the router's logits. Usual: 0.001."""
    disagreement: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of how far the tasks' probabilities of experts lie apart (Jensen-Shannon): tasks that
    agree share their experts, so that fewer are computed. Usual: 0.1."""
    coupling: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the ERC loss: how far experts answer less to their own, perturbed gate row than
    others do, or to it less than to others."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    removed = {
        "embeddings": (
            ("auto", "dense", "lazy"),  # which all led to the same weights within rounding
            "optim.embeddings is gone, as every row of a table moves in every step; leave it out",
        )
    }
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Learning rate of Adam. The paper searched 5e-5 to 5e-4."""
    router_lr_multiplier: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Learning rate of the routers relative to `lr`. Sampled routers start soonest with about
    10; the papers use 1."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-7, gt=0, allow_inf_nan=False)
    """Adam's epsilon. 1e-7 is Keras' default, 1e-8 PyTorch's."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """L2 regularisation: this times a weight is added to its gradient; not for routers.
    Decrease it with the number of rows: 1e-4 for 1e5 rows, 1e-5 for 1e6."""
    schedule: Literal["constant", "cosine"] = "constant"
    """`cosine` decays the learning rate to 0 over trainer.max_epochs."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay per step of an exponential moving average of the weights, which is validated, kept
    and exported instead of the weights; over at most a tenth of the steps so far. 0: none."""
    loss_normalization: Literal["auto", "relative", "absolute"] = "auto"
    """`relative` divides each task's loss by that of the mean alone, so that task weights
    compare tasks and not units; `absolute` does not; `auto`: relative with model.biases."""


LoggerName = Literal["tensorboard", "csv", "mlflow", "wandb"]


class TrainerConfig(Section):
    removed = {
        "shard_embeddings": (
            (False,),
            "trainer.shard_embeddings was removed and must be false; for tables larger than a "
            "device, train with TorchRec or DTensor in your own loop",
        )
    }
    max_epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=512, ge=1)
    monitor: str = "loss"
    """Validation metric that selects the epoch and stops training: `loss` (task-weighted), or
    TASK/METRIC, e.g. watch/auc or rating/mse."""
    patience: int = Field(default=15, ge=1)
    """Epochs without improvement of `monitor` before training stops."""
    min_delta: float = Field(default=0.0, ge=0)
    seed: int = Field(default=0, ge=0)
    """Random seed of initialisation, shuffling, dropout and routers."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """`gpu`: CUDA (or ROCm); `auto`: a GPU if there is one."""
    devices: int = Field(default=1, ge=1)
    """Devices of each machine, one process each."""
    num_nodes: int = Field(default=1, ge=1)
    """Machines that train together."""
    cuda_graph: Annotated[Literal["auto"] | bool, BeforeValidator(_switch_or_auto)] = False
    """Replay training steps on a GPU as a CUDA graph, one launch for each; experimental, as it has
    not run on a GPU yet. `auto`: where steps can be recorded; `true`: else end with an error."""
    log_every_n_steps: int = Field(default=100, ge=1)
    logger: LoggerName = "tensorboard"
    """Where metrics go besides metrics.csv: `tensorboard` (events/), `csv` (only there),
    `mlflow` (mlflow.db), `wandb` (wandb/, offline)."""
    checkpoint_every_n_steps: int = Field(default=10_000, ge=1)
    """Steps between checkpoints inside an epoch; each epoch ends with one."""

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes

    @model_validator(mode="after")
    def _batch_is_shared_out(self) -> TrainerConfig:
        if self.batch_size % self.processes:
            raise ValueError(
                "trainer.batch_size must be a multiple of "
                f"trainer.devices x trainer.num_nodes = {self.processes}, got {self.batch_size}"
            )
        return self
