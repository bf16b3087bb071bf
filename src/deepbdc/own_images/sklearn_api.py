"""What scikit-learn expects of a classifier, without importing scikit-learn before one of its tools asks for it.

Importing it takes about a second, which a person who classifies one picture would wait for.
"""

import inspect
from typing import Any, Self

from deepbdc.errors import UserError


class SklearnClassifier:
    """The parameters, the text, the score and the tags of a classifier, as scikit-learn defines them.

    The parameters are the arguments of ``__init__``, which must keep each of them in the attribute of the same name.
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """The parameters and their default values, in the order of ``__init__``."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by their names. ``deep`` is part of scikit-learn's interface and changes nothing here."""
        return {name: getattr(self, name) for name in sorted(self._defaults())}

    def set_params(self, **parameters: Any) -> Self:
        """Change parameters. They take effect in the next `fit`."""
        known = sorted(self._defaults())
        for name in parameters:
            if name not in known:
                raise UserError(f"{type(self).__name__} has no parameter {name!r}. It has: {', '.join(known)}.")
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def score(self, images: Any, labels: Any, sample_weight: Any = None) -> float:
        """The share of pictures whose predicted class is their label."""
        from sklearn.metrics import accuracy_score

        predicted = self.predict(images)  # type: ignore[attr-defined]
        return float(accuracy_score(labels, predicted, sample_weight=sample_weight))

    def check_fitted(self) -> None:
        """Raise scikit-learn's error if `fit` was not called yet."""
        if not hasattr(self, "classes_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} has not learnt any classes yet: call fit first")

    def __repr__(self) -> str:
        """The parameters that differ from their defaults, as in the call that makes this classifier."""
        given = {name: getattr(self, name) for name in self._defaults()}
        changed = [f"{name}={value!r}" for name, value in given.items() if not _same(value, self._defaults()[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools want to know: that this is a classifier."""
        from sklearn.base import BaseEstimator, ClassifierMixin

        plain = type("Plain", (ClassifierMixin, BaseEstimator), {})
        return plain().__sklearn_tags__()


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
