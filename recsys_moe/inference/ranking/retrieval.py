"""The first of two stages: the items with the largest inner product of the model's bilinear term.

A logit is <a_u, b_i> and what is of the user alone, of the item alone, and of the experts and of
the moment. The first stage ranks by <a_u, b_i> and the item's own part; the second stage scores
what the first one leaves with the whole model. Axes: U users, N items, R width of a_u and b_i, D
width of the model's vectors, C retrieved items.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys_moe.errors import ConfigError
from recsys_moe.inference.plain import whole_number
from recsys_moe.inference.ranking.largest import largest
from recsys_moe.kinds import kind_of
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import of_items
from recsys_moe.schema import Task

EXACT_ITEMS = 20_000
"""Of so few items all inner products are computed, in less time than the second stage takes."""
PRODUCTS_AT_ONCE = 1 << 22
"""Bounds their memory."""
ROUNDS, PER_LIST, SEED = 10, 64, 0
"""Of k-means: its rounds, how many items of a list it sees, and its random numbers."""
FEWEST_LISTS, ITEMS_PER_FOUND = 64, 24
"""Lists that a search visits at least, and items that it visits for each one it is asked for."""
logger = logging.getLogger("recsys_moe")


class Retrievers:
    """One for each task, made when it is first asked for. Thread-safe."""

    def __init__(
        self, model: Recommender, tasks: Mapping[str, tuple[int, Task]], prior_N: Tensor | None
    ) -> None:
        """`tasks`: column of the logits by name; `prior_N`: what is added to those of tasks with
        positives."""
        self._model, self._tasks, self._prior_N = model, tasks, prior_N
        self._made: dict[str, Retriever] = {}
        self._growing = threading.Lock()

    def of_task(self, name: str) -> Retriever:
        """Raises ConfigError."""
        column, task = self._tasks[name]
        with self._growing:
            if name not in self._made:
                prior_N = self._prior_N if kind_of(task).has_positives else None
                self._made[name] = Retriever(self._model, column, prior_N)
            return self._made[name]

    def checked(self, retrieve: Any, k: int, score: Sequence[str]) -> int | None:
        """How many items the first stage leaves for lists of k by the product of some tasks; None
        for all. Raises ConfigError where there cannot be two stages."""
        if retrieve is None:
            return None
        retrieve = whole_number("retrieve", retrieve, 1)
        if len(score) > 1:
            raise ConfigError(
                f"--retrieve needs one task as score, got {'*'.join(score)}; "
                f"pass --score {score[0]}"
            )
        if retrieve < k:
            raise ConfigError(
                f"--retrieve must be at least {k}, the length of a list, got {retrieve}; "
                f"pass e.g. {10 * k}"
            )
        self.of_task(score[0])
        return retrieve


class Retriever:
    """Inner products of one column of the logits. Thread-safe."""

    def __init__(self, model: Recommender, column: int, prior_N: Tensor | None = None) -> None:
        """`prior_N`: what is added to the logits of items. Raises ConfigError for a model whose
        logits have no inner product."""
        self.model, self.column, self.prior_N = model, column, prior_N
        self._index: ItemIndex | None = None
        self._building = threading.Lock()
        nobody_0D = model.item_embedding.weight[:0]
        if model.product(nobody_0D, nobody_0D, column) is None:
            raise ConfigError(
                "--retrieve needs a model with a bilinear term, got one without; omit it, or train "
                "with model.bilinear_rank=64"
            )

    @torch.inference_mode()
    def retrieve(
        self, user_UD: Tensor, item_N: Tensor, count: int, out: Sequence[Tensor]
    ) -> list[Tensor]:
        """Per user the `count` best of the items (ascending indices) that are not in the user's
        `out`; ascending, fewer where fewer are left."""
        user_UR = self._users(user_UD)
        if len(item_N) <= EXACT_ITEMS:
            return largest_products(user_UR, self._items(item_N), item_N, count, out)
        return self.index().search(user_UR, item_N, count, out)

    def index(self) -> ItemIndex:
        """Of the whole catalogue; built once. Raises ConfigError without faiss."""
        with self._building:
            if self._index is None:
                start = time.perf_counter()
                item_NR = self._items(torch.arange(self.model.num_items))
                self._index = ItemIndex(item_NR)
                logger.info(
                    "index of %d items: %d lists, %.0f MB, built in %.1f s",
                    *(len(item_NR), self._index.lists, self._index.megabytes),
                    time.perf_counter() - start,
                )
            return self._index

    @torch.inference_mode()
    def _users(self, user_UD: Tensor) -> Tensor:
        """(U, R): in the unit of the logits, and 1 for the item's own part."""
        factors = self.model.product(user_UD, user_UD[:0], self.column)
        assert factors is not None
        biases = self.model.biases
        scaled = factors[0] if biases is None else factors[0] * biases.scale_T[self.column]
        return torch.column_stack([scaled, scaled.new_ones(len(scaled))])

    @torch.inference_mode()
    def _items(self, item_N: Tensor) -> Tensor:
        """(N, R)"""
        vector_ND = self.model.encode_items(of_items(item_N))
        factors = self.model.product(vector_ND[:0], vector_ND, self.column)
        assert factors is not None
        alone_N = torch.zeros(len(item_N))
        if self.model.biases is not None:
            alone_N += self.model.biases.item_IT[item_N, self.column]
        if self.prior_N is not None:
            alone_N += self.prior_N[item_N]
        return torch.column_stack([factors[1], alone_N])


def largest_products(
    user_UR: Tensor, item_NR: Tensor, item_N: Tensor, count: int, out: Sequence[Tensor]
) -> list[Tensor]:
    """As `Retriever.retrieve`, exact: all inner products are computed."""
    at_once = max(1, PRODUCTS_AT_ONCE // max(1, len(item_N)))
    products = (row_N for some_UR in user_UR.split(at_once) for row_N in some_UR @ item_NR.t())
    found = []
    for product_N, out_S in zip(products, out, strict=True):
        place_L = (~torch.isin(item_N, out_S)).nonzero()[:, 0]
        place_C = place_L[largest(product_N[place_L], count)]
        found.append(item_N[place_C.sort().values])
    return found


class ItemIndex:
    """Inverted lists around the centroids of k-means (Sivic and Zisserman 2003), by faiss.

    The largest inner product is the smallest distance once every item has a further coordinate
    that makes all norms equal, and users have 0 there (Bachrach et al. 2014, "Speeding up the Xbox
    recommender system using a Euclidean transformation for inner-product spaces"). The same items
    give the same lists: k-means has a seed and one thread. A search runs in the caller's thread.
    """

    def __init__(self, item_NR: Tensor) -> None:
        """Raises ConfigError if faiss is not installed."""
        self._faiss = faiss = load_faiss()
        square_N = item_NR.square().sum(1)
        fill_N = (square_N.max() - square_N).clamp(min=0).sqrt()
        vectors = np.ascontiguousarray(torch.column_stack([item_NR, fill_N]).numpy())
        self.size, width = vectors.shape
        self.lists = max(1, int(2 * self.size**0.5))
        self._quantizer = faiss.IndexFlatL2(width)
        self._index = faiss.IndexIVFFlat(self._quantizer, width, self.lists, faiss.METRIC_L2)
        rules = self._index.cp
        rules.niter, rules.max_points_per_centroid, rules.seed = ROUNDS, PER_LIST, SEED
        rules.min_points_per_centroid = 1
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            self._index.train(vectors)
            self._index.add(vectors)
        finally:
            faiss.omp_set_num_threads(threads)

    @property
    def megabytes(self) -> float:
        """Memory for vectors, numbers of items and centroids."""
        width = self._index.d * 4
        return (self.size * (width + 8) + self.lists * width) / 2**20

    def search(
        self, user_UR: Tensor, item_N: Tensor, count: int, out: Sequence[Tensor]
    ) -> list[Tensor]:
        """As `Retriever.retrieve`, approximate. A search visits more lists where fewer items may
        be found."""
        query = torch.column_stack([user_UR, user_UR.new_zeros(len(user_UR))]).numpy()
        rows = zip(np.ascontiguousarray(query), out, strict=True)
        some: dict[str, Any] = {}
        if len(item_N) < self.size:
            is_in_N = np.zeros(self.size, dtype=bool)
            is_in_N[item_N.numpy()] = True
            bits = np.packbits(is_in_N, bitorder="little")
            some = {"sel": self._faiss.IDSelectorBitmap(bits)}
        return [self._search(row[None], len(item_N), count, out_S, some) for row, out_S in rows]

    def _search(
        self, query: Any, left: int, count: int, out_S: Tensor, some: dict[str, Any]
    ) -> Tensor:
        """Of `left` items that may be found."""
        most = min(left, count + len(out_S))
        visited = max(FEWEST_LISTS, -(-ITEMS_PER_FOUND * most * self.lists // left))
        rules = self._faiss.SearchParametersIVF(nprobe=min(self.lists, visited), **some)
        item_C = torch.from_numpy(self._index.search(query, most, params=rules)[1][0])
        kept_C = (item_C >= 0) & ~torch.isin(item_C, out_S)
        return item_C[kept_C][:count].sort().values


def load_faiss() -> Any:
    """The module `faiss`. Raises ConfigError if it is not installed."""
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells which build it loads
    try:
        import faiss
    except ImportError:
        raise ConfigError(
            f"--retrieve of more than {EXACT_ITEMS} items needs faiss-cpu: "
            'pip install "recsys-moe[ann]"'
        ) from None
    return faiss
