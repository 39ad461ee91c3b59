"""``python -m esper_testing new`` with invalid names and places writes nothing and says what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from esper_core.leyline import ConfigError
from esper_testing.commands import KINDS, core_range, new

ROOT = Path(__file__).parents[2]


def written(*arguments: str | Path):
    """Run the command with these arguments in this process."""
    return CliRunner().invoke(new, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> str:
    """Return the only problem that the command reports for these arguments."""
    error = written(*arguments).exception
    assert isinstance(error, ConfigError)
    assert error.exit_code == 2
    (problem,) = error.problems
    return str(problem)


CHARACTERS = "it contains characters that are not allowed"
RESERVED = "it is reserved for Esper itself"
NAMES = {
    **dict.fromkeys(["", "esper-"], "it is empty"),
    **dict.fromkeys(["../x", "/etc/passwd", "a/../b", ".", "x\0y", "x\n", 'x"\n[project]', "$plugin"], CHARACTERS),
    **dict.fromkeys(["1blocks", "my_blocks", "MyBlocks", "my--blocks"], CHARACTERS),
    **dict.fromkeys(["blöcke", "\uff42locks", "積木", "٣"], CHARACTERS),
    **{"a" * 49: "it has 49 characters", "a" * 100_000: "it has 100000 characters"},
    **dict.fromkeys([path.parent.name for path in ROOT.glob("esper-*/pyproject.toml")], RESERVED),
    **dict.fromkeys(["blueprints", "esper"], RESERVED),
}


def test_an_invalid_name_is_refused_with_the_rule(tmp_path):
    for name, reason in NAMES.items():
        message = refused("reward", name, "--into", tmp_path)
        assert message.startswith(f"E501 invalid plugin name: {reason}. Received: ")
        assert message.endswith("at most 48 characters, for example my-blocks.")
        assert len(message) < 500
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_existing_folders_are_not_changed(tmp_path, make):
    make(tmp_path / "esper-x")
    message = refused("reward", "x", "--into", tmp_path)
    assert message.startswith(f'E502 "{tmp_path}/esper-x" exists already and is not overwritten')
    assert "--into FOLDER" in message
    assert [path.name for path in tmp_path.iterdir()] == ["esper-x"]
    assert not (tmp_path / "esper-x" / "pyproject.toml").exists()


def test_a_folder_that_is_not_there_or_is_a_file_is_refused(tmp_path):
    missing = "E503 the folder to write into does not exist. Received: "
    message = refused("reward", "x", "--into", tmp_path / "a" / "b")
    assert message.startswith(missing)
    assert f'mkdir -p "{tmp_path}/a/b"' in message
    (tmp_path / "file").write_text("mine")
    assert refused("reward", "x", "--into", tmp_path / "file").startswith(missing)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder that takes nothing from anybody")
def test_a_folder_that_cannot_be_written_is_reported():
    message = refused("reward", "x", "--into", "/proc")
    assert message.startswith('E504 "/proc/esper-x" cannot be written: ')
    assert "nothing was left there" in message


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, error):
    write, count = Path.write_text, iter(range(100))

    def fails_at_the_third(path, *arguments, **options):
        if next(count) == 2:
            raise error
        return write(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fails_at_the_third)
    assert written("reward", "x", "--into", tmp_path).exit_code != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_new_prints_what_it_wrote_as_json(tmp_path, kind):
    answer = json.loads(written(kind, "my-thing", "--into", tmp_path, "--json").stdout)
    folder = tmp_path / "esper-my-thing"
    assert (answer["folder"], answer["package"], answer["plugin"]) == (str(folder), "esper-my-thing", "my-thing")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(answer["files"]) == files
    assert files >= {"pyproject.toml", "README.md", ".gitignore", ".github/workflows/ci.yml", "tests/test_plugin.py"}
    assert files >= {f"src/esper_my_thing/{name}" for name in ("__init__.py", "plugin.py", "py.typed")}
    assert [path.name for path in tmp_path.iterdir()] == ["esper-my-thing"]


def test_a_new_package_passes_ruff_by_its_settings_and_by_the_projects(tmp_path):
    def check(folder: Path, *settings: str) -> None:
        for command in (["check"], ["format", "--check"]):
            ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *settings, "."]
            done = subprocess.run(ruff, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    for kind in KINDS:
        (tmp_path / kind).mkdir()
        for name in ("x", "a" * 48):
            assert written(kind, name, "--into", tmp_path / kind).exit_code == 0
        check(tmp_path / kind / f"esper-{name}", "--config", str(ROOT / "pyproject.toml"))
    check(tmp_path)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", ">=0.1,<0.2"),
        ("0.9.3.post1", ">=0.9,<0.10"),
        ("0.2.0.dev1+g12", ">=0.2.0.dev1,<0.3"),
        ("1.0.0rc1", ">=1.0.0rc1,<2"),
        ("1.4.2", ">=1.4,<2"),
    ],
)
def test_a_package_takes_the_core_that_it_was_written_for_up_to_the_next_that_may_break_it(version, expected):
    from packaging.specifiers import SpecifierSet

    assert core_range(version) == expected
    assert SpecifierSet(expected).contains(version, prereleases=True)
