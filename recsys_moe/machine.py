"""Processor, memory, limits and accelerators of this machine; None where unknown.

No node name, serial number or kernel build: they could identify the machine.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

GIB = 2**30
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
CGROUP = Path("/sys/fs/cgroup")


def let_idle_threads_sleep() -> None:
    """Bound how long idle threads of GNU OpenMP spin, unless the environment does. Before torch.

    Where two processes spin on the same cores an epoch takes 4 to 15 times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def system() -> dict[str, Any]:
    """Operating system and processor."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "usable cores": cores(),
    }


def _cpu_name() -> str | None:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1]
    return platform.processor() or None


def gib(count: int | None) -> str | None:
    """Bytes -> "1.5 GiB"."""
    return None if count is None else f"{count / GIB:.1f} GiB"


def memory() -> dict[str, int | None]:
    """In bytes; None where unknown."""
    found: dict[str, int | None] = {"total": None, "available": None}
    with suppress(OSError, ValueError, AttributeError):
        found["total"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError):
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        if line := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
            found["available"] = int(line[1]) * 1024
    return found


def memory_limit() -> int | None:
    """Bytes granted by the control group; None for no limit."""
    with suppress(OSError, ValueError):
        return int((CGROUP / "memory.max").read_text(encoding="utf-8"))
    return None


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_quota() -> float | None:
    """Cores granted by the control group; `cpu.max` of "150000 100000" is 1.5."""
    with suppress(OSError, ValueError):
        granted, period = (CGROUP / "cpu.max").read_text(encoding="utf-8").split()
        return int(granted) / int(period)
    return None


def number_formats() -> dict[str, Any]:
    """Number formats of the processor, as torch reports them."""
    import torch

    can_flush = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    return {
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "denormals can be flushed": can_flush,
        "bf16 on the CPU": "fast" if has_fast_bf16() else "emulated",
    }


def has_fast_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 by instructions of its own, as torch reports it.

    What oneDNN supports includes x86 processors that convert to float32 first, which is slow.
    """
    import torch

    if platform.machine().lower() in ("x86_64", "amd64"):
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # AMX has bfloat16 products
        return any(getattr(torch.cpu, name, lambda: False)() for name in names)
    says = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return says is not None and bool(says())


def trains_in_bf16(accelerator: str) -> bool:
    """Whether steps are on a CPU that multiplies bfloat16: on GPUs it speeds up large batches
    alone."""
    import torch

    on_gpu = accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available())
    return not on_gpu and has_fast_bf16()


def accelerators() -> list[dict[str, Any]]:
    """CUDA GPUs. MPS has no float64 and cannot train."""
    import torch

    if torch.cuda.is_available():
        return [_gpu(number) for number in range(torch.cuda.device_count())]
    return []


def _gpu(number: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(number)
    return {
        "kind": "cuda",
        "name": properties.name,
        "memory": gib(properties.total_memory),
        "compute capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda of torch": torch.version.cuda,
        "bf16": torch.cuda.is_bf16_supported(),
    }


def _driver() -> str | None:
    with suppress(OSError):
        text = NVIDIA_DRIVER.read_text(encoding="utf-8")
        if found := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", text):
            return found[1]
    return None
