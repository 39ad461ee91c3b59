"""Isolation: an import that fails, prints or is interrupted affects no other plugin and is attributed correctly."""

import signal
from asyncio import CancelledError

import pytest

from esper_core.leyline import ConfigError, PluginError, Problem
from esper_core.plugins.isolation import Label, attributed_to, is_interrupt


def test_reported_line_is_the_innermost_of_the_plugin(report, workshop) -> None:
    workshop.write("esper_extra/__init__", "")
    workshop.write("esper_extra/plugin", "from esper_extra import blocks\n")
    workshop.write("esper_extra/blocks", "import json\n\njson.loads('{')\n")
    assert report(workshop.package(target="esper_extra.plugin")) == (
        'E210 plugin "extra" (esper-extra 0.2.0) cannot be imported: json.decoder.JSONDecodeError:'
        " Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
        "  esper_extra/blocks.py:3\n"
        "  Tell the author of esper-extra, or leave it out:  plugins.disable: [extra]"
    )


@pytest.mark.parametrize(
    ("source", "target", "error", "place"),
    [
        (None, "esper_extra.plugin", "ModuleNotFoundError: No module named 'esper_extra'", "esper_extra.plugin"),
        ("", "esper_extra:x", "AttributeError: module 'esper_extra' has no attribute 'x'", "esper_extra:x"),
        ("x = 1\ndef broken(:\n", None, "SyntaxError: invalid syntax", "esper_extra.py:2"),
    ],
)
def test_module_that_cannot_be_imported_is_the_authors_fault(report, workshop, source, target, error, place) -> None:
    assert report(workshop.package(source, target=target)) == (
        f'E210 plugin "extra" (esper-extra 0.2.0) cannot be imported: {error}\n'
        f"  {place}\n"
        "  Tell the author of esper-extra, or leave it out:  plugins.disable: [extra]"
    )


@pytest.mark.parametrize(
    ("source", "summary", "line"),
    [
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
        ("raise GeneratorExit('enough')\n", "GeneratorExit: enough", 1),
        ("def f():\n    f()\nf()\n", "RecursionError: maximum recursion depth exceeded", 2),
        ("raise MemoryError\n", "MemoryError", 1),
        ("class Odd(BaseException): pass\nraise Odd\n", "esper_extra.Odd", 2),
        ("raise BaseExceptionGroup('two', [SystemExit(1)])\n", "BaseExceptionGroup: two (1 sub-exception)", 1),
        ("class Odd(Exception): __str__ = None\nraise Odd\n", "esper_extra.Odd: <exception str() failed>", 2),
        ("raise ValueError('one\\ntwo\\n' + 999 * 'x')\n", "ValueError: one two xxx", 1),
    ],
)
def test_any_exception_on_import_breaks_only_that_plugin(load, workshop, source, summary, line) -> None:
    plugins = load(workshop.package(source), workshop.blueprints("tiny", plugin="good"))
    assert [(record.id, record.status) for record in plugins.records] == [("extra", "broken"), ("good", "active")]
    (problem,) = plugins.problems
    assert problem.code == "E210"
    assert problem.message.startswith(f'plugin "extra" (esper-extra 0.2.0) cannot be imported: {summary}')
    assert (problem.file, problem.line) == (str(workshop.folder / "esper_extra.py"), line)
    assert len(problem.message) < 500


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_during_an_import_is_raised(load, workshop) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(workshop.package("raise KeyboardInterrupt\n"))


@pytest.mark.parametrize("error", [ValueError("too\nlong"), SystemExit(3), CancelledError(), GeneratorExit()])
def test_any_exception_of_a_component_names_it_and_its_code(error: BaseException) -> None:
    with pytest.raises(PluginError) as refused, attributed_to(Label("reward r (p 1)", "theirs:Reward"), "at work"):
        raise error
    (problem,) = refused.value.problems
    assert problem.code == "E231"
    assert problem.message.startswith(f"reward r (p 1) raised {type(error).__name__} at work: ")
    assert (problem.file, problem.path) == (None, "theirs:Reward")
    assert "\n" not in problem.message


@pytest.mark.usefixtures("ctrl_c_raises")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigError(Problem("E120", "no"))])
def test_ctrl_c_and_errors_with_a_code_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as passed, attributed_to("reward r (p 1)", "at work"):
        raise error
    assert passed.value is error


@pytest.mark.usefixtures("ctrl_c_raises")
def test_only_ctrl_c_interrupts_and_not_what_plugin_code_raises_where_a_run_handles_the_signal():
    for handler, is_users in ((signal.default_int_handler, True), (signal.SIG_IGN, False)):
        signal.signal(signal.SIGINT, handler)
        assert is_interrupt(KeyboardInterrupt()) is is_users
        with pytest.raises(KeyboardInterrupt if is_users else PluginError), attributed_to("policy", "in act"):
            raise KeyboardInterrupt
