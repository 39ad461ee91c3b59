"""Does the kit stay out of the way where it is only installed?"""

from __future__ import annotations

import subprocess
import sys

import pytest

import esper_testing


def test_importing_it_imports_neither_torch_nor_the_core():
    code = "import esper_testing, sys; sys.exit(bool({'torch', 'esper_core', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_its_names_are_sorted_and_there():
    assert esper_testing.__all__ == sorted(esper_testing.__all__)
    assert all(callable(getattr(esper_testing, name)) for name in esper_testing.__all__)
    assert set(esper_testing.__all__) <= set(dir(esper_testing))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'check_blueprnt'"):
        esper_testing.check_blueprnt  # noqa: B018
