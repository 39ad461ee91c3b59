"""The plugin is listed, and each of its blueprints passes the checks of its kind."""

import json
import subprocess
import sys

from esper_testing import Check, parametrize_with_checks


def test_it_is_listed_and_nothing_is_wrong_with_it() -> None:
    command = [sys.executable, "-m", "esper_run", "plugins", "list", "--json"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    record = {plugin["id"]: plugin for plugin in json.loads(listing)}["blueprints-extra"]
    assert (record["status"], record["problems"]) == ("active", [])
    names = {"blueprints-extra/shift-mix", "blueprints-extra/haar", "blueprints-extra/poly"}
    assert set(record["components"]) == names


@parametrize_with_checks("blueprints-extra")
def test_it_conforms(check: Check) -> None:
    check.run()
