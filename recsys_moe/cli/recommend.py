"""`recsys-moe recommend` and `similar`."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recsys_moe.cli.options import Events, Json, Model, Overwrite, Retrieve, opt
from recsys_moe.cli.recommend_inputs import candidates_of, cold_user, context_of, with_items_of
from recsys_moe.errors import ConfigError

if TYPE_CHECKING:
    from recsys_moe.inference.cold_start.whom import Resolved
    from recsys_moe.inference.predictor import Attribution, ColdUser, Predictor, Recommendation

    TaskAttributions = dict[str, list[Attribution]]

MOST_ATTRIBUTIONS = 3
"""Features and items of the history that are printed per task."""
logger = logging.getLogger("recsys_moe")

NewItems = Annotated[Path | None, opt("New items to add to the catalogue: CSV, TSV or Parquet.")]
Why = Annotated[bool, opt("Also print which features and positives moved each score.", "--why")]
Context = Annotated[
    list[str] | None, opt("Context feature, e.g. device=tv. Repeatable.", metavar="NAME=VALUE")
]
Time = Annotated[
    str | None, opt("When, for a model with time features: an ISO date, or seconds since 1970.")
]
Where = Annotated[
    list[str] | None,
    opt("Filter items, e.g. 'year>=1990'. Repeatable: all must hold.", metavar="COLUMN OP VALUE"),
]
Output = Annotated[Path | None, opt("With --users: file to write, CSV, Parquet or JSONL.")]
Count = Annotated[int, opt("Items to return.", min=1)]


def recommend(
    model: Model,
    user: Annotated[str | None, opt("User id.")] = None,
    users: Annotated[
        Path | None, opt("File of user ids: CSV or Parquet (column user), or TXT.")
    ] = None,
    output: Output = None,
    k: Count = 10,
    history: Annotated[
        str | None, opt("New user: items interacted with, or ITEM=RATING.", metavar="FILE|ID,ID")
    ] = None,
    features: Annotated[
        list[str] | None, opt("New user: a feature, e.g. age=25. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    context: Context = None,
    time: Time = None,
    events: Events = None,
    items: NewItems = None,
    exclude_seen: Annotated[
        bool, opt("Leave out training positives and items of history and events.", "--exclude-seen")
    ] = False,
    candidates: Annotated[
        str | None, opt("Rank only these items: ids, or CSV, Parquet or TXT.", metavar="FILE|ID,ID")
    ] = None,
    where: Where = None,
    score: Annotated[
        str | None, opt("Task to rank by, or a product of two, e.g. 'watch*rating'.")
    ] = None,
    retrieve: Retrieve = None,
    why: Why = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Recommend items to a user, a new user or a file of users."""
    _check(user, users, output, history is not None or bool(features))
    if why and users is not None:
        raise ConfigError("--why needs a single user; pass --user ID instead of --users")
    if overwrite and output is None:
        raise ConfigError("--overwrite needs --output; pass both or neither")
    from recsys_moe.inference.files.events import observe_file
    from recsys_moe.inference.predictor import Predictor

    predictor = with_items_of(Predictor.load(model), items)
    if events is not None:
        observe_file(predictor, events)
    options: dict[str, Any] = {
        "k": k,
        "context": context_of(predictor, context or [], time),
        "exclude_seen": exclude_seen,
        "candidates": candidates_of(predictor, candidates),
        "where": where or [],
        "score": score,
        "retrieve": retrieve,
    }
    if users and output:
        options["overwrite"] = overwrite
        _recommend_file(predictor, (users, output), options, as_json=as_json)
    else:
        whom = user or cold_user(history, features or [])
        _recommend_one(predictor, whom, options, why=why, as_json=as_json)


def similar(
    model: Model,
    item: Annotated[str, opt("Item id.")],
    k: Count = 10,
    as_json: Json = False,
) -> None:
    """List the items most similar to an item.

    Similarity is the cosine of the item embeddings.
    """
    from recsys_moe.inference.files.recommend import as_objects
    from recsys_moe.inference.predictor import Predictor

    predictor = Predictor.load(model)
    ranked = predictor.similar(item, k)
    if as_json:
        print(json.dumps({"item": predictor.items.plain(item), "items": as_objects(ranked)}))
    else:
        print(table(ranked, ["cosine"]))


def table(
    ranked: Sequence[Recommendation],
    scores: Sequence[str],
    attributions: Sequence[TaskAttributions] = (),
) -> str:
    """Ranked items as text, each followed by its attributions, if any."""
    heads = [name.rjust(8) for name in scores]
    lines = ["  ".join([f"{'rank':>4}", f"{'item':>10}", *heads, "title"])]
    for entry in ranked:
        numbers = [f"{entry.scores[name]:{max(8, len(name))}.3f}" for name in scores]
        item = _printable(str(entry.item))
        lines.append("  ".join([f"{entry.rank:4d}", f"{item:>10}", *numbers]))
        lines[-1] += f"  {_printable(entry.title or '')}"
        for task, why in attributions[entry.rank - 1].items() if attributions else ():
            lines += [f"{'':6}{task} {r.contribution:+.3f}  {_printable(r.words)}" for r in why]
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Without control characters, which a terminal would obey; titles come from outside."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _check(user: str | None, users: Path | None, output: Path | None, cold: bool = False) -> None:
    if [user is None, users is None, not cold].count(False) != 1:
        raise ConfigError(
            "pass one of --user ID, --users FILE or, for a new user, --history and --features"
        )
    if user is not None and not user.strip():
        raise ConfigError(f"--user must not be empty, got {user!r}; pass a user id")
    if (users is None) != (output is None):
        raise ConfigError("--users FILE needs --output FILE; pass both, or --user ID")


def _recommend_one(
    predictor: Predictor,
    user: str | ColdUser,
    options: dict[str, Any],
    *,
    why: bool,
    as_json: bool,
) -> None:
    from recsys_moe.inference.files.recommend import as_object

    resolved = predictor.resolve([user])
    [ranked] = predictor.recommend(resolved, **options)
    [unseen] = predictor.are_unseen_users(resolved)
    attributions = _attributions(predictor, resolved, ranked, options["context"]) if why else []
    if as_json:
        name = predictor.users.plain(user) if isinstance(user, str) else None
        left = {} if isinstance(user, str) else {"unused": asdict(resolved.unused[0])}
        answer = {**as_object(name, unseen, ranked), **left}
        for entry, of_tasks in zip(answer["items"], attributions, strict=False):
            entry["why"] = {task: [r.as_object() for r in one] for task, one in of_tasks.items()}
        print(json.dumps(answer))
        return
    _tell_unused(predictor, user, resolved, unseen=unseen)
    if not ranked:
        logger.warning("no items to recommend: no item passes the filters")
    tasks = [task.name for task in predictor.tasks]
    print(table(ranked, list(ranked[0].scores) if ranked else tasks, attributions))


def _tell_unused(
    predictor: Predictor, user: str | ColdUser, resolved: Resolved, *, unseen: bool
) -> None:
    """On stderr, what the model could not use."""
    from recsys_moe.inference.cold_start.options import unused_lines
    from recsys_moe.raw_ids import of_text

    for unused in resolved.unused:
        for line in unused_lines(unused):
            logger.info("%s", line)
    named = {0: str(of_text(user))} if isinstance(user, str) else {}
    if unseen and named and not predictor.observed(named):
        logger.info("unknown user %s: non-personalised recommendations", user)


def _attributions(
    predictor: Predictor,
    user: Resolved,
    ranked: Sequence[Recommendation],
    context: dict[str, Any],
) -> list[TaskAttributions]:
    """Of each item of a list."""
    import torch

    from recsys_moe.inference.cold_start.whom import Resolved

    if predictor.no_attributions:
        raise ConfigError(f"--why is not available for this model: {predictor.no_attributions}")
    items = Resolved(torch.tensor([entry.index for entry in ranked], dtype=torch.long))
    whom = user.repeated(len(items))
    return predictor.attributions(whom, items, MOST_ATTRIBUTIONS, context=context)


def _recommend_file(
    predictor: Predictor, files: tuple[Path, Path], options: dict[str, Any], *, as_json: bool
) -> None:
    """`files`: of users to read, of lists to write."""
    from recsys_moe.inference.files.recommend import recommend_file
    from recsys_moe.progress import row_progress

    with row_progress("recommending") as progress:
        counts = recommend_file(predictor, *files, progress=progress, **options)
    words = f"{counts['users']} users, {counts['unseen_user']} unknown"
    print(json.dumps(counts) if as_json else f"{files[1]}: {words}")
