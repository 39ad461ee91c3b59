"""The plugin is listed, and each of its blueprints passes the checks of its kind."""

import json
import subprocess
import sys

from esper_testing import Check, parametrize_with_checks


def test_it_is_listed_and_nothing_is_wrong_with_it() -> None:
    command = [sys.executable, "-m", "esper_run", "plugins", "list", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    mine = {plugin["id"]: plugin for plugin in json.loads(told)}["blueprints-extra"]
    assert (mine["status"], mine["problems"]) == ("active", [])
    names = {"blueprints-extra/shift-mix", "blueprints-extra/haar", "blueprints-extra/poly"}
    assert set(mine["components"]) == names


@parametrize_with_checks("blueprints-extra")
def test_it_conforms(check: Check) -> None:
    check.run()
