"""What two-stage lists gain and miss: exact lists beside `recommend --retrieve N`.

    python benchmarks/retrieval.py RUN [--items 500000] [--rounds N] [--users N] [--clock wall|cpu]

In turn and for the same users: the exact lists, and both stages with the first one by an index and
by all inner products. Recall is the share of the exact list that two stages return, for the first
10 and 100. `--items`: first the catalogue grows to so many, of vectors between two of the model's
own with noise, so that items, experts and bilinear term fit together as training left them; users
likewise with `--grow-users`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import common
import pyarrow as pa
import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.inference.predictor import Predictor, Recommendation
from recsys_moe.inference.ranking import retrieval
from recsys_moe.inference.threads import USERS_AT_ONCE

K, LEAST = 100, 0.99
NOISE, OWN = 0.2, (0.7, 1.0)
"""Of a made-up vector: noise in standard deviations, and the weight of the first of two vectors."""
Lists = list[list[Recommendation]]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=10)
    parser.add_argument("run", help="run or model folder")
    parser.add_argument("--users", type=int, default=4, help="users in one call")
    parser.add_argument("--items", type=int, default=0, help="grow the catalogue to so many")
    parser.add_argument("--grow-users", type=int, default=0)
    parser.add_argument("--retrieve", type=int, nargs="*", default=[100, 300, 1000, 3000])
    parser.add_argument("--many", type=int, default=0, help="users to rank once, one after another")
    options = common.parse(parser, argv)
    artifact = load_artifact(options.run)
    predictor = Predictor(grown(artifact, options.items, options.grow_users))
    predictor.users.warm_up()
    size = predictor.items.feature.size
    before = common.resident("VmHWM")
    retriever = predictor._top_items.retrievers.of_task(predictor.tasks[0].name)
    memory = {"before": before, "index": retriever.index().megabytes}
    memory["after"] = common.resident("VmHWM")
    vectors_NR = retriever._items(torch.arange(size))
    retriever._items = lambda item_N: vectors_NR  # all products: of vectors that are kept, too
    counts = [count for count in options.retrieve if count < size]
    found = compare(predictor, counts, options)
    numbers: dict[str, Any] = {"items": size, "k": K, "memory_mb": memory, "stages": found}
    if options.many:
        numbers["many"] = many(predictor, options.many, counts)
    kept = [one for name, one in found.items() if name != "exact" and one["recall"][K] >= LEAST]
    gain = max((one["faster"].median for one in kept), default=0.0)
    what = f"exact over two stages with recall@{K} of {LEAST}"
    targets = [common.target(what, gain, 2.0, "x", at_least=True)]
    common.report("retrieval", numbers, targets)


def grown(artifact: Artifact, items: int, users: int) -> Artifact:
    """A model with more items and users, the first of which are its own."""
    model, generator = artifact.model, torch.Generator().manual_seed(0)
    if model.biases is not None:
        raise SystemExit("--items and --grow-users need a model without model.biases")
    sizes = {"item": max(items, artifact.schema.item.size)}
    sizes["user"] = max(users, artifact.schema.user.size)
    changed = {}
    for name, size in sizes.items():
        table = getattr(model, f"{name}_embedding")
        weight = _more(table.weight.detach(), size, generator)
        setattr(model, f"{name}_embedding", torch.nn.Embedding.from_pretrained(weight))
        own = getattr(artifact.schema, name)
        changed[name] = replace(own, size=size)
    seen = dict(artifact.seen)
    ends = seen["offsets"][-1:].expand(sizes["user"] + 1 - len(seen["offsets"]))
    seen["offsets"] = torch.cat([seen["offsets"], ends])
    for name, size in sizes.items():
        trained = seen[f"trained_{name}"]
        seen[f"trained_{name}"] = torch.cat([trained, trained.new_ones(size - len(trained))])
    schema = replace(artifact.schema, **changed)
    tables = {f"{name}s": pa.table({name: pa.array(range(size))}) for name, size in sizes.items()}
    return replace(artifact, schema=schema, seen=seen, **tables)


def _more(weight_ND: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Rows of ids, made-up ones, and the OOV id."""
    own_ND, more = weight_ND[:-1], size - len(weight_ND) + 1
    first_M, second_M = (torch.randint(len(own_ND), (more,), generator=generator) for _ in "ab")
    share_M1 = torch.rand(more, 1, generator=generator) * (OWN[1] - OWN[0]) + OWN[0]
    made_MD = torch.lerp(own_ND[second_M], own_ND[first_M], share_M1)
    made_MD += NOISE * own_ND.std(0) * torch.randn(made_MD.shape, generator=generator)
    return torch.cat([own_ND, made_MD, weight_ND[-1:]])


def compare(predictor: Predictor, counts: Sequence[int], options: Any) -> dict[str, Any]:
    """Prints a table: milliseconds per user, how many times faster than exact, and recall."""
    generator = torch.Generator().manual_seed(0)
    rounds = options.rounds + 1  # the first one warms up
    order = torch.randperm(len(predictor.users.ids), generator=generator)
    ids = [predictor.users.ids[i].as_py() for i in order[: rounds * options.users].tolist()]
    lists: dict[str, list[Lists]] = {}

    def call(name: str, exact_items: int | None, retrieve: int | None) -> common.Call:
        mine = lists.setdefault(name, [])

        def made() -> None:
            if exact_items is not None:
                retrieval.EXACT_ITEMS = exact_items
            some = ids[len(mine) * options.users :][: options.users]
            mine.append(predictor.recommend(some, K, exclude_seen=True, retrieve=retrieve))

        return made

    calls = {"exact": call("exact", None, None)}
    for count in counts:
        calls[f"index {count}"] = call(f"index {count}", 0, count)
        calls[f"products {count}"] = call(f"products {count}", len(predictor.items.ids), count)
    times = common.in_turn(calls, options.rounds, options.clock, warm_up=1)
    found = {
        name: {
            "ms": common.spread([one / options.users for one in ms]),
            "faster": common.ratio(times, "exact", name),
            "recall": {k: recall(lists["exact"], lists[name], k) for k in (10, K)},
        }
        for name, ms in times.items()
    }
    columns = {"first stage, N": "{name}", "ms per user: median (p10 - p90)": "{ms:.1f}"}
    columns |= {"exact / this": "{faster:.1f}", "recall@10": "{recall[10]:.4f}"}
    common.table({**columns, f"recall@{K}": f"{{recall[{K}]:.4f}}"}, common.named(found))
    return found


def recall(exact: list[Lists], found: list[Lists], k: int) -> float:
    """Mean share of the first k of the exact lists that is among the first k found."""
    shares = []
    for ours, theirs in zip(sum(found, []), sum(exact, []), strict=True):
        best = {entry.item for entry in theirs[:k]}
        shares.append(len(best & {entry.item for entry in ours[:k]}) / max(1, len(best)))
    return sum(shares) / len(shares)


def many(predictor: Predictor, users: int, counts: Sequence[int]) -> dict[str, Any]:
    """Seconds for many users, with the index."""
    import time

    retrieval.EXACT_ITEMS = 0
    ids = predictor.users.ids.slice(0, users).to_pylist()
    found = {}
    for count in counts:
        start = time.perf_counter()
        for first in range(0, len(ids), USERS_AT_ONCE):
            some = ids[first : first + USERS_AT_ONCE]
            predictor.recommend(some, K, exclude_seen=True, retrieve=count)
        found[str(count)] = {
            "seconds": time.perf_counter() - start,
            "peak_mb": common.resident("VmHWM"),
        }
    rows = common.named(found)
    common.table(
        {"N": "{name}", f"s for {users} users": "{seconds:.1f}", "MB": "{peak_mb:.0f}"}, rows
    )
    return found


if __name__ == "__main__":
    main()
