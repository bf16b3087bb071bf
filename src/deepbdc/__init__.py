"""Few-shot image classification with Deep Brownian Distance Covariance.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that ``import deepbdc`` and
``deepbdc --help`` cost milliseconds.
"""

import lazy_loader

from deepbdc import _torchvision_operators

__version__ = "1.0.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_torchvision_operators.install()
