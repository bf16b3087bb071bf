"""The commands of ``deepbdc``, one module each. They import torch and rich inside functions: ``--help`` is fast."""
