"""How long one validation takes: forward passes and exact metrics over 224,943 rows.

    python benchmarks/validation.py [--rows N] [--rounds N] [--clock wall|cpu]

As many random rows as MovieLens-1M's validation split has, the paper's model, batches of the
default size. In turn: all of `evaluate_model`, and its forward passes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import common
import shape
import torch

from recsys_moe.artifact.evaluation import evaluate_model
from recsys_moe.config.settings import parse_config
from recsys_moe.data.batches import EvalBatches
from recsys_moe.train.processes.memory import training_process


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=10)
    parser.add_argument("--rows", type=int, default=shape.VAL_ROWS)
    options = common.parse(parser, argv)
    config, schema, model = parse_config({}), shape.schema(), shape.build_model()
    batches = EvalBatches(shape.random_columns(options.rows), config.eval_rows)

    @torch.inference_mode()
    def forward() -> None:
        model.eval()
        for batch in batches:
            model(batch.request)

    calls = {
        "validation": lambda: evaluate_model(model, batches, schema, config, split="val"),
        "its forward passes": forward,
    }
    with training_process():  # as between the epochs of fit
        times = common.in_turn(calls, options.rounds, options.clock, warm_up=1)
    seconds = {name: common.spread([ms / 1e3 for ms in values]) for name, values in times.items()}
    found = [
        {"name": name, "s": s, "share": common.ratio(times, name, "validation")}
        for name, s in seconds.items()
    ]
    columns = {f"{options.rows:,} rows": "{name}", "s: median (p10 - p90)": "{s:.2f}"}
    common.table({**columns, "share": "{share:.0%}"}, found)
    what = f"validation of {options.rows:,} rows"
    targets = [common.target(what, seconds["validation"].median, 3, " s")]
    common.report("validation", {"rows": options.rows, "seconds": seconds}, targets)


if __name__ == "__main__":
    main()
