"""Imports what a run imports, and runs nothing: a process can be forked from here."""

import pandas  # noqa: F401
import torch.utils.tensorboard  # noqa: F401

import recsys_moe.train.fit  # noqa: F401
