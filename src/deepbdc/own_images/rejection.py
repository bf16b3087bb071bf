"""What ``reject`` means: the share of the pictures of the known classes that may be lost to "none of these"."""

from deepbdc.errors import UserError

USUAL_RATE = 0.05
"""The rate of ``reject=True``, and of `Prediction.rejected`."""


def reject_rate(reject: bool | float | None) -> float | None:
    """The share that ``reject`` stands for; None if nothing is rejected.

    >>> reject_rate(True), reject_rate(0.1), reject_rate(False)
    (0.05, 0.1, None)
    """
    if reject is None or reject is False:
        return None
    rate = USUAL_RATE if reject is True else float(reject)
    if not 0 < rate < 1:
        raise UserError(
            f"reject must be between 0 and 1, like {USUAL_RATE}: the share of the pictures of your classes that may "
            f"get the answer 'none of these', got {reject}"
        )
    return rate
