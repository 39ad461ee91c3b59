"""The tests of the core pass where no other member is installed."""

import subprocess

import pytest


@pytest.mark.slow
def test_the_core_passes_its_own_tests_with_no_other_member_installed(new_environment, pytestconfig, tmp_path):
    environment = new_environment("esper-core")
    tests = pytestconfig.rootpath / "esper-core" / "tests"
    command = [environment.python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += ["-c", str(pytestconfig.rootpath / "pyproject.toml"), str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
