"""The commands of ``deepbdc``, one file each. They import torch and rich where they use them: help must be quick."""
