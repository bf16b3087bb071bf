"""Random seeds for positions in a training: what is drawn there depends on the recipe's seed and the position alone."""

import hashlib


def derive(seed: int, *place: str | int) -> int:
    """A 63-bit seed for one position, such as ``("pretrain", epoch, step)``. A resumed run needs no generator state.

    >>> derive(1, "pretrain", 3) == derive(1, "pretrain", 3) != derive(1, "pretrain", 4)
    True
    """
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
