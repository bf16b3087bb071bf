"""Recipes: everything about an experiment in one small YAML file, checked before anything is trained.

``__init__.pyi`` lists the names; each is imported when it is first used, so that listing recipes does not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
