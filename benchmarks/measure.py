"""Time and memory of two sides in one run."""

import statistics
import time
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def medians(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Milliseconds of each side, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            result = run()
            elapsed = time.perf_counter() - start
            del result  # not in the time: returning memory to the system may also return what the other side left
            if repeat > 0:  # the first round warms up
                times[name].append(elapsed * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that ``run`` held at any moment, by torch's allocator."""
    run()  # index tables are made once and kept
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    del kept
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"
