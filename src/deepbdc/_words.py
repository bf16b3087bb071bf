"""Words that depend on numbers."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun, in the singular for one.

    >>> counted(1, "picture"), counted(1200, "picture"), counted(0, "class", "classes")
    ('1 picture', '1,200 pictures', '0 classes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def first_of(items: list[str], most: int) -> str:
    """The first ``most`` items, separated by commas, and how many more there are.

    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
