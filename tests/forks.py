"""`recsys-moe` in processes that begin with everything imported.

A server imports torch and Lightning once and forks; a process of its own takes seconds for that,
which tests of what two processes train need not pay each time. Those of how the command starts them
(test_launch.py, some of test_devices.py) start real ones.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SECONDS = 120.0
"""No run takes longer: a hang is a failure."""
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.imported"])


def _become(words: Sequence[str], log: Path, environment: dict[str, str]) -> None:
    """Be the command line; stdout and stderr go to `log`.out and `log`.err."""
    import torch

    from recsys_moe import cli

    torch.set_num_threads(1)  # the server has read OMP_NUM_THREADS long ago
    os.environ.update(environment)
    for stream, end in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        os.dup2(os.open(f"{log}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    sys.argv = ["recsys-moe", *words]
    cli.main()


def on_two(words: Sequence[str], log: Path) -> subprocess.CompletedProcess[str]:
    """The command in two processes that know each other as torchrun's do.

    stdout is that of the first; stderr, in its order, of both; the exit code the first that is not
    0. What they say is written beside `log`.
    """
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2"}
    logs = [log.with_name(f"{log.name}-{rank}") for rank in range(2)]
    processes = []
    for rank, own in enumerate(logs):
        ranks = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        processes.append(_forks.Process(target=_become, args=(words, own, ranks), daemon=True))
        processes[-1].start()
    for process in processes:
        process.join(SECONDS)
        process.kill()
        process.join()
    code = next((process.exitcode for process in processes if process.exitcode), 0)
    said = [Path(f"{own}.err").read_text() for own in logs]
    out = Path(f"{logs[0]}.out").read_text()
    return subprocess.CompletedProcess(words, code or 0, out, "".join(said))


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
