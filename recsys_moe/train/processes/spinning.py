"""How long idle threads of GNU OpenMP spin before they sleep. To be settled before torch loads.

A training step is hundreds of short parallel operations. Threads that sleep in between are woken
for each: a lone training took 10% longer on one machine and up to twice as long on another. But
two processes whose threads spin on the same cores take 5 to 15 times as long, and one beside other
work up to 4 times. So one training of a machine spins, and only where its cores are idle.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from recsys_moe.machine import core_quota, cores

VARIABLE = "GOMP_SPINCOUNT"
BRIEF, LONG = "3000", "300000"
"""Turns of the loop. LONG is OpenMP's own where there are as many cores as threads."""
SAID = (VARIABLE, "OMP_WAIT_POLICY")
"""Variables by which the user decides."""
SECONDS = 0.1
"""How long the machine is watched."""
TOLERATED = 0.3
"""Processors that others on the machine may use beyond those that our threads leave."""
STAT = Path("/proc/stat")
TURN = "\0recsys-moe: long spinning"
"""Name of a socket in Linux' abstract namespace, which belongs to one process at a time.

Containers with networks of their own do not see each other's, only each other's work.
"""

_is_ours = False
_turns: list[socket.socket] = []


def spin_briefly() -> None:
    """Unless the environment says how long."""
    global _is_ours
    if not any(name in os.environ for name in SAID):
        os.environ[VARIABLE], _is_ours = BRIEF, True


def spin_long_if_alone() -> None:
    """Where `spin_briefly` decided, the machine is idle, and no other process has this turn."""
    wanted = threads()
    if not _is_ours or _turns or wanted == 1:  # a lone thread waits for none
        return
    if take_turn(TURN) and has_idle_cores(wanted):
        os.environ[VARIABLE] = LONG
    else:
        give_turn_back()


def undecided(environment: dict[str, str]) -> dict[str, str]:
    """An environment for other processes of ours, which are to decide for themselves."""
    return {k: v for k, v in environment.items() if k != VARIABLE or not _is_ours}


def take_turn(name: str) -> bool:
    """Until `give_turn_back` or the end of this process. False where another process has it."""
    with suppress(OSError, AttributeError), ExitStack() as stack:
        turn = stack.enter_context(socket.socket(socket.AF_UNIX))
        turn.bind(name)
        _turns.append(turn)
        stack.pop_all()
        return True
    return False


def give_turn_back() -> None:
    while _turns:
        _turns.pop().close()


def threads() -> int:
    """That OpenMP will use."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) > 0 else cores()


def has_idle_cores(wanted: int) -> bool:
    """Do others leave as many? False where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        before, start = busy_seconds(), time.perf_counter()
        time.sleep(SECONDS)
        others = (busy_seconds() - before) / (time.perf_counter() - start)
        return others + wanted <= min(cores(), core_quota() or cores()) + TOLERATED
    return False


def busy_seconds() -> float:
    """Processor time of all processes but ours, since the machine started.

    Not what the host of a virtual machine takes: threads that sleep get none of it back.
    """
    words = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq = map(int, words[1:8])
    own = sum(os.times()[:2])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - own
