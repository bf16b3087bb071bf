"""Errors that are meant for people. The command line prints their message; any other error keeps its traceback."""


class UserError(ValueError):
    """The caller can correct this. The message says what was given, what is needed, and how to correct it."""


class WrongType(TypeError, UserError):
    """A value has the wrong type, or an option does not exist."""


class NotFinite(UserError):
    """Features or scores are NaN, infinite or too large for their type."""


class NotEnoughMemory(MemoryError, UserError):
    """The result does not fit into the memory that may be used."""


class MissingPackage(ModuleNotFoundError, UserError):
    """A package that this feature needs is not installed."""


class Note(UserWarning):
    """A warning for the person who runs a command. The command line shows these, and hides those of other libraries."""
