"""How does a task say that a setting will not do? With the setting's name, so that its line in the file is told."""

from __future__ import annotations

from typing import NoReturn

from esper_core.leyline import SettingError


def refuse(setting: str, message: str, hint: str | None = None) -> NoReturn:
    """SettingError (E120); ``hint`` is the way out, and ends with what was received.

    >>> refuse("path", 'there is no file "a.csv"', "Received: a.csv")
    Traceback (most recent call last):
    esper_core.leyline.errors.SettingError: E120 there is no file "a.csv"
      path
      Received: a.csv
    """
    raise SettingError(setting, message, hint)
