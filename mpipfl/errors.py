"""What can go wrong by the user's hand or the world's: shown as one message, never as a traceback.

Each message names the value, what is legal and the next step. `code` is the process's exit code.
"""

from __future__ import annotations


class UserError(Exception):
    """A mistake or a fault whose message alone helps the user on."""

    code = 1


class ConfigError(UserError):
    """The configuration cannot be run as it stands."""

    code = 2


class DataError(UserError):
    """Data that is missing, unreadable or impossible to divide as asked."""

    code = 3
