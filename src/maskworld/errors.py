"""Errors a user can mend. The command line prints their text and leaves with exit code 2."""


class UserError(Exception):
    """Something the user gave is wrong; the message says what, where and what to do."""


class ConfigError(UserError):
    """A configuration value cannot be used; the message names the field."""


class DataError(UserError):
    """An input file cannot be used; the message names file, line and field."""


class CheckpointError(UserError):
    """A checkpoint is damaged or belongs to another model contract; the message names the field."""


class StorageError(UserError):
    """The run folder cannot be written (full, read-only); the message names the path."""


class ConversionError(UserError):
    """A Hugging Face folder cannot be read, or a model cannot be written as one; the message names file and entry."""
