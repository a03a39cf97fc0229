"""What a process holds and uses, as Linux counts it: /proc/PID/status and schedstat (man 5 proc)."""

from pathlib import Path


def resident_bytes(pid: int) -> int:
    return _kilobytes(pid, "VmRSS") << 10


def peak_bytes(pid: int) -> int:
    """The most that was resident since `forget_peak`, or since the process began.

    Linux keeps count, so no moment is missed as it would be by looking now and then.
    """
    return _kilobytes(pid, "VmHWM") << 10


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def cpu_seconds(pid: int) -> float:
    """That the main thread has used; waiting for a core does not count."""
    told = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii")
    return int(told.split()[0]) / 1e9


def _kilobytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"process {pid} has no {name}: it has ended")
