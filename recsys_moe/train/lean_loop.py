"""What Lightning's loop does at every step and training has no use for, left out.

Around each of about fifty calls per step Lightning enters a profiler's context, and it makes these
calls for every hook of every callback, empty ones too: a fifth of what it adds to a small step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler

STEP_HOOKS = (
    *("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    *("on_before_optimizer_step", "on_train_batch_end"),
)
_NOTHING: AbstractContextManager[Any] = nullcontext()


class NoProfiler(PassThroughProfiler):
    """Measures nothing, as Lightning's own default, and makes no generator to do so."""

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        return _NOTHING


def skip_idle_hooks(part: Callback | lightning.LightningModule) -> None:
    """Let Lightning pass over the hooks of a step that `part` does not define.

    It looks them up on the instance and calls what can be called. A hook that the instance itself
    carries, as those of a LambdaCallback, stays.
    """
    base = Callback if isinstance(part, Callback) else lightning.LightningModule
    for name in STEP_HOOKS:
        inherited = getattr(type(part), name) is getattr(base, name)
        if inherited and name not in vars(part):
            setattr(part, name, None)
