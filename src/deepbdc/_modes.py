"""Switches that several threads share: the mode of a network, and the number of threads of torch."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

_lock = threading.Lock()
_modes: "WeakKeyDictionary[nn.Module, tuple[int, bool]]" = WeakKeyDictionary()  # users, and the mode to go back to
_thread_users = 0
_threads_before = 1


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put all parts of a network into evaluation mode; afterwards each part gets its own mode back.

    Several threads may do this to one network at a time. The last one to leave restores the modes.
    """
    modules = list(network.modules())
    with _lock:
        for module in modules:
            users, mode = _modes.get(module, (0, module.training))
            _modes[module] = users + 1, mode
            module.training = False
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                users, mode = _modes.pop(module)
                if users > 1:
                    _modes[module] = users - 1, mode
                else:
                    module.training = mode


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one CPU thread, for a long series of small steps.

    A second thread gains little there, and when other programs keep the cores busy, each step waits for the slower of
    the two: that took 10 to 100 times as long. torch keeps a number for each thread and one for threads to come, so
    whoever leaves restores the number that was set before the first one entered.
    """
    global _thread_users, _threads_before
    with _lock:
        if _thread_users == 0:
            _threads_before = torch.get_num_threads()
        _thread_users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _thread_users -= 1
            torch.set_num_threads(_threads_before)
