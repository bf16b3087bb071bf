"""Context managers that several threads may use at the same time, tested with real threads."""

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from deepbdc import _modes
from deepbdc._modes import evaluating, one_thread, one_thread_workers

SECONDS = 20  # how long a test waits for a thread before it fails
T = TypeVar("T")


class Visitor:
    """A thread that enters a context, stays inside until it is told to leave, and can be asked for values."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        self._context = context
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._entered: AbstractContextManager[None] | None = None

    def run(self, function: Callable[[], T]) -> T:
        """What ``function`` returns in this thread."""
        future: Future[T] = self._executor.submit(function)
        return future.result(timeout=SECONDS)

    def enter(self) -> "Visitor":
        self._entered = self._context()
        self.run(self._entered.__enter__)
        return self

    def leave(self) -> None:
        assert self._entered is not None
        entered = self._entered
        self.run(lambda: entered.__exit__(None, None, None))

    def end(self) -> None:
        self._executor.shutdown()


MakeVisitor = Callable[[Callable[[], AbstractContextManager[None]]], Visitor]


@pytest.fixture
def visitor() -> Iterator[MakeVisitor]:
    """Makes threads that end with the test."""
    made: list[Visitor] = []

    def make(context: Callable[[], AbstractContextManager[None]]) -> Visitor:
        made.append(Visitor(context))
        return made[-1]

    yield make
    for one in made:
        one.end()


def network() -> nn.Sequential:
    """A network in training mode with a frozen part in evaluation mode."""
    frozen = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).eval()
    frozen[1].train()
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(), nn.ReLU()), frozen)


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def test_evaluation_mode_and_back() -> None:
    net = network()
    before = modes(net)
    assert len(set(before)) == 2
    with evaluating(net):
        assert not any(modes(net))
    assert modes(net) == before


@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_two_threads_overlap(visitor: MakeVisitor, first_leaves_first: bool) -> None:
    net = network()
    before = modes(net)
    visitors = [visitor(lambda: evaluating(net)).enter(), visitor(lambda: evaluating(net)).enter()]
    if not first_leaves_first:
        visitors.reverse()
    visitors[0].leave()
    assert not any(modes(net)), "the other thread is still evaluating"
    visitors[1].leave()
    assert modes(net) == before


@pytest.mark.parametrize("part_leaves_first", [True, False])
def test_two_threads_overlap_on_a_network_and_a_part_of_it(visitor: MakeVisitor, part_leaves_first: bool) -> None:
    net = network()
    part = net[1]
    before = modes(net)
    of_part, of_whole = visitor(lambda: evaluating(part)).enter(), visitor(lambda: evaluating(net)).enter()
    if part_leaves_first:
        of_part.leave()
        assert not any(modes(net))
        of_whole.leave()
    else:
        of_whole.leave()
        assert not any(modes(part))
        assert net.training
        of_part.leave()
    assert modes(net) == before


def test_many_threads_at_once() -> None:
    """No thread ever sees a module in training mode, and no count is lost."""
    net = network()
    before = modes(net)
    barrier = threading.Barrier(8)

    def visit(number: int) -> bool:
        barrier.wait(SECONDS)
        seen = False
        for _ in range(200):
            with evaluating(net if number % 2 else net[2]):
                seen = seen or any(modes(net[2]))
        return seen

    with ThreadPoolExecutor(max_workers=8) as executor:
        assert not any(executor.map(visit, range(8)))
    assert modes(net) == before


def test_nested_blocks() -> None:
    net = network()
    before = modes(net)
    with evaluating(net):
        with evaluating(net[1]):
            pass
        assert not any(modes(net))
        with evaluating(net):
            pass
        assert not any(modes(net))
    assert modes(net) == before


def test_an_exception_inside_restores_the_modes() -> None:
    net = network()
    before = modes(net)
    with pytest.raises(KeyError), evaluating(net):
        raise KeyError
    assert modes(net) == before


class WithoutMode(nn.Module):
    """A module whose mode cannot be set, like a frozen TorchScript module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training" and "training" in self.__dict__:
            raise AttributeError("there is no mode")
        super().__setattr__(name, value)


def test_an_exception_while_entering_restores_the_modes() -> None:
    net = nn.Sequential(nn.Linear(3, 3), WithoutMode(), nn.Dropout())
    with pytest.raises(AttributeError, match="no mode"), evaluating(net):
        pass
    assert all(modes(net))
    with evaluating(net[0]):
        pass
    assert net[0].training, "no count was left behind"


def test_a_mode_that_is_changed_inside_does_not_last(visitor: MakeVisitor) -> None:
    net = network().eval()
    first = visitor(lambda: evaluating(net)).enter()
    net.train()
    second = visitor(lambda: evaluating(net)).enter()
    assert not any(modes(net)), "a thread that enters later still evaluates"
    first.leave()
    second.leave()
    assert not any(modes(net)), "the mode from before the first thread"


def test_a_copy_made_inside_is_independent(visitor: MakeVisitor) -> None:
    net = network()
    before = modes(net)
    thread = visitor(lambda: evaluating(net)).enter()
    twin = copy.deepcopy(net)
    twin.train()
    thread.leave()
    assert modes(net) == before
    assert all(modes(twin))
    with evaluating(twin):
        assert modes(net) == before
        assert not any(modes(twin))
    assert all(modes(twin))


def test_modules_that_are_added_or_removed_inside() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    removed = net[1]
    with evaluating(net):
        net[1] = nn.ReLU()
    assert removed.training
    assert all(modes(net))


def test_no_count_is_kept_after_the_block() -> None:
    net, before = network(), len(_modes._in_use)
    with evaluating(net):
        assert len(_modes._in_use) == before + len(modes(net))
    assert len(_modes._in_use) == before


@pytest.fixture
def three_threads() -> Iterator[None]:
    """torch uses three CPU threads, in this Python thread and in new ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def number_in_a_new_thread() -> int:
    with ThreadPoolExecutor(max_workers=1) as new_thread:
        return new_thread.submit(torch.get_num_threads).result(timeout=SECONDS)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_overlapping_one_thread(visitor: MakeVisitor, first_leaves_first: bool) -> None:
    visitors = [visitor(one_thread).enter(), visitor(one_thread).enter()]
    assert [one.run(torch.get_num_threads) for one in visitors] == [1, 1]
    if not first_leaves_first:
        visitors.reverse()
    visitors[0].leave()
    assert [one.run(torch.get_num_threads) for one in visitors] == [3, 1]
    visitors[1].leave()
    assert [one.run(torch.get_num_threads) for one in visitors] == [3, 3]
    assert number_in_a_new_thread() == 3
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_other_threads_keep_their_number(visitor: MakeVisitor) -> None:
    """Also a thread that uses torch for the first time while another one is inside: it would keep that number."""
    old, new = visitor(one_thread), visitor(one_thread)
    old.run(torch.get_num_threads)
    with one_thread():
        assert torch.get_num_threads() == 1
        assert old.run(torch.get_num_threads) == 3
        assert new.run(torch.get_num_threads) == 3
    assert new.run(torch.get_num_threads) == 3
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_each_thread_gets_its_own_number_back(visitor: MakeVisitor) -> None:
    other = visitor(one_thread)
    other.run(torch.get_num_threads)  # only now the thread has a number of its own
    other.run(lambda: torch.set_num_threads(2))
    with one_thread():
        other.enter()
        other.leave()
    assert other.run(torch.get_num_threads) == 2
    assert torch.get_num_threads() == 3
    assert number_in_a_new_thread() in (2, 3), "the number of one of the threads that left"


@pytest.mark.usefixtures("three_threads")
def test_nested_one_thread() -> None:
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1, "the outer block goes on"
    assert torch.get_num_threads() == 3
    assert number_in_a_new_thread() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_exception_inside_restores_the_number() -> None:
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 3
    assert number_in_a_new_thread() == 3


def test_workers_use_one_thread_each_and_leave_others_alone() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        pool = one_thread_workers(3)
        assert one_thread_workers(3) is pool
        barrier = threading.Barrier(3, timeout=SECONDS)  # so that three threads are started

        def number() -> int:
            barrier.wait()
            return torch.get_num_threads()

        assert [future.result(SECONDS) for future in [pool.submit(number) for _ in range(3)]] == [1, 1, 1]
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch.get_num_threads).result(SECONDS) == 3
    finally:
        torch.set_num_threads(before)
