"""Measure and compare the time and the memory of several functions in one process."""

import statistics
import time
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def medians(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median time of each function in milliseconds. The functions run alternately."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            result = run()
            elapsed = time.perf_counter() - start
            del result  # not timed: it may also return memory to the system that another function has freed
            if repeat > 0:  # the first round is a warm-up
                times[name].append(elapsed * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes(run: Callable[[], object]) -> int:
    """The peak memory of ``run``, as torch's profiler sees it."""
    run()  # a warm-up: index tables are computed once and cached
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
