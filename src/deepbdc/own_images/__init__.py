"""The parts of `deepbdc.estimator.FewShotClassifier`: from a handful of own pictures to answers."""
