"""Every block of code on every page is run, or at least parsed by the program that it is meant for.

Other tests follow many pages from beginning to end (``followed``), or check single blocks (``HELD``). This one checks
every other block. A ``yaml`` block must be a valid configuration, once missing keys of a run are added. Commands in an
``sh`` block, or in a line of text, must exist with their options, and files that they run must be valid. A ``python``
block is run, and must print what the comments behind its lines show. A block of any other kind is an error.
"""

import contextlib
import importlib.util
import io
import itertools
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from esper_run import cli
from tests.docs import test_answers as errors, test_commands as commands, test_how_to as how_to
from tests.support.fixtures import SitePackages

ROOT = Path(__file__).parents[2]
ESPER = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?esper ")
FENCE = r"(?P<in> *)(?P<fence>```+|~~~+)"
BLOCK = re.compile(rf"^{FENCE} *(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=in)(?P=fence) *$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^ {4}(?:\$ )?((?:\.venv/bin/)?(?:esper|python|pytest|pip|make) \S.*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:python -m|pytest|pip install|make) [^`]+)`")
FROM_THE_CODE = re.compile(r"<!-- from the code: .*?<!-- end -->", re.DOTALL)

FOLLOWED = {
    "docs/guides/write-a-blueprint.md": "test_how_to.py",
    "docs/get-started.md": "test_how_to.py",
    "docs/guides/grow-in-a-trainer.md": "test_pages.py",
    "docs/guides/use-your-own-data.md": "test_how_to.py",
    "docs/guides/where-should-lora-go.md": "test_how_to.py",
    "docs/reference/observations.md": "test_pages.py",
}
"""Pages that a test follows as a reader would, besides the guides and the pages of errors."""

HELD = {
    ("README.md", "def build(shape)"): "test_readme.py",
    ("README.md", "host: my_model:build"): "test_readme.py",
    ("README.md", "esper_register_blueprints"): "test_readme.py",
    ("README.md", "esper-blueprints-extra"): "test_readme.py",
    ("docs/guides/resume-a-run.md", "^C"): "test_pages.py",
    ("docs/guides/use-kuberay.md", "FROM"): "test_ray_pages.py",
    ("docs/guides/use-slurm.md", "#SBATCH"): "test_ray_pages.py",
}
"""Blocks with a test of their own, by page and by words in them; the test searches for the same words."""

REST = {"task": "stripes", "host": "pointwise-mlp", "slots": {"early": {"blueprints": ["conv_light"]}}}
REST |= {"policy": "static"}
"""The required keys of a run, added to a block that is a part of a configuration."""

SURROUNDINGS = {
    "docs/reference/hooks.md": "from pydantic import BaseModel\n\nfrom esper_core import hookimpl\n",
    "docs/reference/rewards.md": "from esper_rewards.potentials import Team as MyReward\n",
    "esper-testing/README.md": "from esper_testing import parametrize_with_checks\n",
}
"""Names that the Python blocks of a page assume."""

STANDS_FOR = {"my-plugin": "rewards"}
"""Placeholders on pages, and what replaces them."""

ELSEWHERE = ("eval", "helm", "kubectl", "pip", "ray", "sbatch", "sed")
"""Programs that are not the project's."""


PAGES: list[Path] = commands.PAGES


@dataclass(frozen=True)
class Block:
    """The text between two fences. generated: whether ``make docs`` writes it."""

    page: str
    line: int
    kind: str
    body: str
    part: str = ""
    generated: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.kind or 'of no kind'}"


def blocks(page: str, text: str) -> Iterator[Block]:
    """Return the blocks of a page, each with its part of the page, from one heading to the next."""
    marked = [match.span() for match in FROM_THE_CODE.finditer(text)]
    for match in BLOCK.finditer(text):
        start = match.start()
        part = text[text.rfind("\n## ", 0, start) + 1 :].split("\n## ")[0]
        written = page.startswith("docs/") and any(begin < start < end for begin, end in marked)
        body = re.sub(rf"^{match['in']}", "", match["body"], flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, start) + 1, match["kind"].strip(), body, part, written)


def followed(block: Block) -> bool:
    """Return whether a test follows the page, or this part of it, as a reader would."""
    name = Path(block.page).name
    if block.page.startswith("docs/reference/errors/E"):
        return name.removesuffix(".md") not in errors.COPIED or block.kind == "text"
    if block.page.startswith("docs/guides/") and block.page not in FOLLOWED:
        return name in {page.name for page in how_to.FOLLOWED}
    return block.page in FOLLOWED


def held(block: Block) -> bool:
    return any(block.page == page and words in block.body for page, words in HELD)


def typed(text: str) -> list[str]:
    """Return the commands in an ``sh`` block, without their comments."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [bare for line in lines if (bare := re.sub(r"(?:^|\s)#\s.*", "", line).strip())]


def look_at(block: Block, folder: Path) -> None:
    """Check that a block is valid; raise AssertionError, or the error of its parser, if not."""
    if block.kind == "yaml":
        in_order(block, folder)
    elif block.kind == "sh":
        for command in typed(block.body):
            exists(command, ROOT / Path(block.page).parent)
    elif block.kind == "toml":
        assert tomllib.loads(block.body), block
    elif block.kind == "python":
        runs(block)
    elif not block.generated:
        pytest.fail(f"{block}: nobody looks at it")


def in_order(block: Block, folder: Path) -> None:
    """Check that the block, with the missing keys of a run, is a configuration without problems and warnings."""
    settings = yaml.safe_load(block.body)
    assert isinstance(settings, dict), block
    file = folder / "page.yaml"
    file.write_text(yaml.safe_dump({**REST, **settings}), encoding="utf-8")
    with announced((ROOT / block.page).parent, folder):
        verdict, _, way = checked(file).splitlines()
        assert (verdict, way[:8]) == (f"{file}: in order", "Networks"), block


@contextlib.contextmanager
def announced(package: Path, folder: Path) -> Iterator[None]:
    """Run a block with an additional package, as if it were installed; its metadata are in the folder."""
    file = package / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"] if package.parent.name == "examples" else {}
    with pytest.MonkeyPatch.context() as patch:
        for group, points in project.get("entry-points", {}).items():
            lines = [f"[{group}]", *(f"{name} = {module}" for name, module in points.items()), ""]
            SitePackages(folder).metadata(project["name"], "\n".join(lines), version=project["version"])
            patch.syspath_prepend(str(folder))
            patch.syspath_prepend(str(package / "src"))
        yield
    for name, module in list(sys.modules.items()):
        if project and str(getattr(module, "__file__", None)).startswith(str(package / "src")):
            del sys.modules[name]


def checked(file: Path, *options: str) -> str:
    """Return the output of ``esper check``."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        cli.main(["check", str(file), *options])
    return output.getvalue()


def exists(command: str, folder: Path) -> None:
    """Check that the command exists, in the folder of the page or in the checkout."""
    if ESPER.match(command):
        esper(command)
        return
    program, *arguments = shlex.split(command)
    if program == "python" and arguments[0].endswith(".py"):
        assert (ROOT / arguments[0]).is_file(), command
    elif program == "python":
        assert arguments[0] == "-m", command
        assert importlib.util.find_spec(arguments[1]), command
    elif program == "pytest":
        files = [word for word in arguments if word.endswith(".py")]
        assert all((ROOT / file).is_file() for file in files), command
    elif program in ("pip", "make"):
        {"pip": pip, "make": make}[program](arguments, folder)
    else:
        assert program in ELSEWHERE, f"nobody knows how to look at this: {command}"


def esper(command: str) -> None:
    """Check a command of Esper: its options, and the file that it names with its overrides."""
    ((arguments, is_complete),) = commands.commands(f"```sh\n{command}\n```\n")
    words = shlex.split(arguments)
    commands.parse(words, is_complete=is_complete)
    if words[0] in ("run", "check") and (ROOT / words[1]).is_file():
        changes = [word for option, word in itertools.pairwise(words) if option == "--set"]
        options = [word for change in changes for word in ("--set", change)]
        output = checked(ROOT / words[1], *options)
        assert re.search(r": in order\n.* episodes each.*\nNetworks", output), f"{command}\n{output}"


def pip(arguments: list[str], folder: Path) -> None:
    """Check an installation: of a folder or a member with its extras, or of a package that the tests have."""
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    words = iter(arguments)
    assert next(words) == "install", arguments
    for word in words:
        if word in ("-c", "--constraint"):
            assert (ROOT / next(words)).is_file(), arguments
        elif word not in ("-e", "--editable", "…"):
            name, _, extra = word.removesuffix("]").partition("[")
            at = folder if name == "." else ROOT / name
            if at.is_dir():
                project = tomllib.loads((at / "pyproject.toml").read_text(encoding="utf-8"))["project"]
                assert not extra or extra in project.get("optional-dependencies", {}), word
            else:
                assert f"\n{name.replace('-', '_')}==" in versions, word


def make(arguments: list[str], folder: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = [f"\n{argument.partition('=')[0]} " if "=" in argument else f"\n{argument}:" for argument in arguments]
    assert [name for name in names if name not in makefile] == [], folder


def runs(block: Block) -> None:
    """Run a block of Python; a comment behind a ``print`` shows its output, perhaps shortened."""
    source = SURROUNDINGS.get(block.page, "") + block.body
    for placeholder, path in STANDS_FOR.items():
        source = source.replace(f'"{placeholder}"', f'"{path}"')
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(source, str(block), "exec"), {"__name__": "page"})  # our own pages
    shown = re.findall(r"^print\(.*\)  # (.*)$", block.body, re.MULTILINE)
    printed = output.getvalue().splitlines()
    assert len(printed) == len(shown), printed
    for line, comment in zip(printed, shown, strict=True):
        begin, more, _ = comment.partition("…")
        assert line.startswith(begin) if more else line == comment, f"{block}: prints {line}"


LEFT = [
    block
    for page in PAGES
    for block in blocks(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
    if not followed(block) and not held(block)
]
TEXTS = {page: BLOCK.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
INLINES = {" ".join(command.split()): page.parent for page in PAGES for command in INLINE.findall(TEXTS[page])}


@pytest.mark.parametrize("page", sorted({block.page for block in LEFT}))
def test_blocks_of_a_page_are_valid(page, tmp_path):
    for number, block in enumerate(block for block in LEFT if block.page == page):
        (folder := tmp_path / str(number)).mkdir()
        look_at(block, folder)


def test_commands_in_lines_of_text_can_be_typed():
    for command, folder in INLINES.items():
        exists(command, folder)


def test_a_command_is_in_a_block_marked_as_commands():
    indented = {page.name: INDENTED.findall(text) for page, text in TEXTS.items()}
    assert {name: matches for name, matches in indented.items() if matches} == {}
