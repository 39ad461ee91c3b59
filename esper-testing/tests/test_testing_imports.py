"""esper_testing costs other suites next to nothing where it is only installed."""

import subprocess
import sys

import pytest

HEAVY = "{'torch', 'esper_core', 'numpy', 'pydantic', 'click'}"


@pytest.mark.parametrize("module", ["esper_testing", "esper_testing.pytest_plugin"])
def test_importing_it_imports_neither_torch_nor_the_core(module):
    code = f"import {module}, sys; sys.exit(bool({HEAVY} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_test_suite_of_another_project_imports_neither_torch_nor_the_core(tmp_path):
    tmp_path.joinpath("test_it.py").write_text(
        f"import sys\ndef test_it():\n    assert not {HEAVY} & set(sys.modules)\n"
    )
    run = started(tmp_path, "-p", "esper_testing.pytest_plugin")
    assert run.returncode == 0, run.stdout.decode()


def started(folder, *arguments):
    """Run pytest over a folder without Esper, with the named plugins only."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, str(folder)]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    return subprocess.run(command, check=False, capture_output=True, cwd=folder, env=environment)
