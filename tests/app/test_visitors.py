"""How many visitors the server remembers, and for how long."""

import pytest

from deepbdc import FewShotClassifier
from deepbdc.app.limits import AppLimits
from deepbdc.app.names import distinct_names
from deepbdc.app.pictures import NewPicture
from deepbdc.app.visitor import Visitor
from deepbdc.app.visitors import Visitors
from tests.app.drawing import picture


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def visitors(template: FewShotClassifier, clock: Clock) -> Visitors:
    limits = AppLimits(visitors=3, idle_seconds=60, fitted=1)
    return Visitors(lambda _: Visitor(template, limits), limits, clock)


def test_the_visitor_with_the_oldest_request_is_forgotten(visitors: Visitors) -> None:
    ids = []
    for number in range(3):
        visitor_id, visitor = visitors.welcome()
        visitor.add_class(str(number))
        ids.append(visitor_id)
    visitors.find(ids[0])
    newest, _ = visitors.welcome()
    assert [visitors.find(key) is not None for key in (*ids, newest)] == [True, False, True, True]


def test_visitors_who_changed_nothing_are_forgotten_first(visitors: Visitors) -> None:
    kept, visitor = visitors.welcome()
    visitor.add_class("work")
    for _ in range(10):
        visitors.welcome()
    assert visitors.find(kept) is visitor
    assert len(visitors) == 3


def test_idle_visitors_are_forgotten(visitors: Visitors, clock: Clock) -> None:
    early, _ = visitors.welcome()
    clock.now = 50
    late, _ = visitors.welcome()
    assert visitors.find(early) is not None
    clock.now = 105
    assert visitors.find(early) is not None, "the last request was 55 seconds ago"
    clock.now = 112
    assert visitors.find(late) is None
    assert len({early, late}) == 2


def test_only_the_latest_visitors_keep_their_fitted_classifier(visitors: Visitors, template: FewShotClassifier) -> None:
    images = template.embed([picture("disc", 1), picture("stripes", 1)])
    ids = []
    for _ in range(2):
        visitor_id, visitor = visitors.welcome()
        for image, name in zip(images, ("disc", "stripes"), strict=True):
            visitor.add_picture(NewPicture(image), visitor.add_class(name))
        ids.append(visitor_id)
    first = visitors.find(ids[0])
    assert first is not None
    learnt = first.classifier()
    assert first.classifier() is learnt
    visitors.find(ids[1])
    again = first.classifier()
    assert again is not learnt
    assert again.predict(images).tolist() == ["disc", "stripes"]


def test_a_visitor_starts_with_the_examples_of_the_server(template: FewShotClassifier) -> None:
    (image,) = template.embed([picture("disc", 1)])
    visitor = Visitor(template, AppLimits(), [(image, "disc")])
    assert not visitor.touched
    visitor.add_class("other")
    assert visitor.touched
    visitor.start_over()
    assert list(visitor.classes.values()) == ["disc"]
    assert len(visitor.pictures) == 1


def test_names_of_classes_become_distinct_and_short() -> None:
    long = "a" * 50
    names = distinct_names(["Apple", "apple", f"{long} one", f"{long} two", "none of these", ""], most=50)
    assert list(names.values()) == ["Apple", "apple (2)", long, f"{'a' * 44} (2)", "none of these (2)", "class"]


def test_examples_whose_classes_differ_in_case_only(template: FewShotClassifier) -> None:
    images = template.embed([picture("disc", 0), picture("stripes", 0)])
    visitor = Visitor(template, AppLimits(), list(zip(images, ["Apple", "apple"], strict=True)))
    assert list(visitor.classes.values()) == ["Apple", "apple (2)"]
    visitor.replace(list(zip(map(NewPicture, images), ["pear", "Pear"], strict=True)))
    assert list(visitor.classes.values()) == ["pear", "Pear (2)"]
