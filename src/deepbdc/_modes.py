"""Settings of torch: the mode of a network, the number of CPU threads, autocast, and the layout of weights.

The context managers may be used by several Python threads at the same time, and may be nested.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_lock = threading.Lock()

# For each module that is in use: by how many `evaluating` blocks, and its mode before the first of them. This is not an
# attribute of the module, because a copy of the module would then inherit the count of its original.
_in_use: "WeakKeyDictionary[nn.Module, tuple[int, bool]]" = WeakKeyDictionary()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put every module of a network into evaluation mode; afterwards each module gets its former mode back.

    If several blocks overlap, in one thread or in several, a module stays in evaluation mode until the last block ends.
    It then gets back the mode that it had before the first block, even if somebody changed the mode in between.
    """
    entered: list[nn.Module] = []
    try:
        with _lock:
            for module in network.modules():
                users, former_mode = _in_use.get(module, (0, module.training))
                module.training = False
                _in_use[module] = users + 1, former_mode
                entered.append(module)
        yield
    finally:
        with _lock:
            for module in entered:
                users, former_mode = _in_use.pop(module)
                if users > 1:
                    _in_use[module] = users - 1, former_mode
                else:
                    module.training = former_mode


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast is off on the device of a tensor."""
    kind = like.device.type if isinstance(like, Tensor) else "cpu"
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


@contextmanager
def separate_random_numbers() -> Iterator[None]:
    """Random numbers drawn inside do not change those drawn afterwards."""
    with torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one CPU thread in the calling Python thread, for a long series of small operations.

    A second CPU thread gains little there. When other programs keep the cores busy, each operation waits for the slower
    of the two threads: that took 10 to 100 times as long. Other Python threads keep their number of CPU threads.
    """
    former_number = torch.get_num_threads()
    if former_number == 1:
        yield
        return
    _set_number_of_this_thread(1, for_new_threads=former_number)
    try:
        yield
    finally:
        _set_number_of_this_thread(former_number, for_new_threads=former_number)


def _set_number_of_this_thread(number: int, for_new_threads: int) -> None:
    """Set how many CPU threads torch uses in the calling Python thread, and in Python threads to come.

    torch keeps one number per Python thread, and one that a Python thread starts with when it first uses torch.
    ``torch.set_num_threads`` changes both. So another thread, which does nothing else, sets the second one again. It is
    kept, because starting a thread that uses torch takes two milliseconds.
    """
    with _lock:
        torch.set_num_threads(number)
        if number != for_new_threads:
            _helper().submit(torch.set_num_threads, for_new_threads).result()


@cache
def _helper() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="deepbdc-threads")


@cache
def one_thread_workers(number: int) -> ThreadPoolExecutor:
    """Threads that work at the same time, in each of which torch uses one CPU thread. The pool is kept.

    Args:
        number: How many threads; and how many CPU threads torch uses in other Python threads to come.
    """

    def start() -> None:
        torch.get_num_threads()  # gives the thread its first number, which would else replace ours later
        _set_number_of_this_thread(1, for_new_threads=number)

    return ThreadPoolExecutor(number, thread_name_prefix="deepbdc-workers", initializer=start)


if hasattr(os, "register_at_fork"):  # a forked process has no such threads
    os.register_at_fork(after_in_child=_helper.cache_clear)
    os.register_at_fork(after_in_child=one_thread_workers.cache_clear)


def to_channels_last(network: nn.Module) -> None:
    """Store the four-dimensional tensors of a network with their channels last."""
    for value in [*network.parameters(), *network.buffers()]:
        if value.dim() == 4:
            value.data = value.data.contiguous(memory_format=torch.channels_last)
