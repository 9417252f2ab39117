"""A trained model in a notebook: scores, rankings, neighbours, explanations.

    recsys-moe prepare synthetic --out data/demo
    recsys-moe fit --data data/demo --config quickstart --out runs/demo
    python examples/notebook_predictor.py runs/demo

Cells are marked as editors and Jupytext read them.
"""

# %%
from __future__ import annotations

import sys

from recsys_moe import Predictor

# %% A run folder or a model folder. Neither the training data nor Lightning is needed.
predictor = Predictor.load(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
user = predictor.users.ids[0].as_py()
print([task.name for task in predictor.tasks])

# %% Pairs of raw ids; ids that training has not seen are scored by a row trained for them.
scores = predictor.score(users=[user, "somebody new"], items=[2, 3])
print({task: values.tolist() for task, values in scores.tasks.items()}, scores.unseen_user)

# %% The best of the whole catalogue, exactly.
for entry in predictor.recommend([user], k=5, exclude_seen=True)[0]:
    print(entry.rank, entry.item, entry.scores)

# %% Similar items by the model, and the experts behind a score.
print([entry.item for entry in predictor.similar(2, k=3)])
for task, shares in predictor.explain([user], [2])[0].items():
    print(task, [(share.expert, round(share.contribution, 3)) for share in shares])
