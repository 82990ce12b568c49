# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can mend. Each message says what is wrong, the numbers, and what to set.

Entry points turn them into one line on stderr and exit code 2; anything else is a bug and keeps its traceback.
"""


class UserError(Exception):
    """Base of the errors whose message is meant for the person who started the run."""


class ConfigError(UserError):
    """The flags or the YAML ask for something impossible or contradictory."""


class DataError(UserError):
    """A data set, tokenizer or corpus file cannot be used as it is."""


class CheckpointError(UserError):
    """A checkpoint or weight file cannot be used as it is."""
