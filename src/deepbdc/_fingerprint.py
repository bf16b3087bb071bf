"""Fingerprints: whether two networks compute the same, by their structure, declared settings and weights."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def weights_fingerprint(network: nn.Module) -> str:
    """A hash of a network's structure, settings and weights.

    Our own modules declare all of their options in an attribute ``settings``; of others (those of torch, or a person's
    own) the text that ``extra_repr`` gives is used, where torch's layers show all of their options.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name, module in network.named_modules():
        digest.update(f"{name} {type(module).__name__} {settings_of(module)}\n".encode())
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def settings_of(module: nn.Module) -> str:
    """The settings of one module, without its children, as text."""
    declared: Any = getattr(module, "settings", None)
    if not isinstance(declared, Mapping):
        return module.extra_repr()
    return ", ".join(f"{name}={value!r}" for name, value in sorted(declared.items()))
