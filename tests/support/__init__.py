"""What tests of several packages share.

``fixtures`` is a pytest plugin, which the ``conftest.py`` at the top loads for every test. The other modules are
imported by name: ``from tests.support.loops import make_loop``.

What is here:
    adapters: adapters, and a host with a slot for them.
    browser_driver: drive Chromium over its debugging protocol.
    configurations: small configurations, and the problems that they have.
    core_worlds: small hosts, tasks and recipes.
    faulty_modules: modules with one fault.
    fixtures: packages that are installed for a test, the command line, a terminal.
    games: decision problems with a known optimum.
    governed: a network under the governor.
    hostile_plugin: a plugin that misbehaves.
    html_pages: read HTML pages.
    loops: training loops with a Gardener.
    plugin_packages: fixtures that write plugin packages into a folder.
    run_folders: write run directories without running anything.
    small_models: small models of transformers.
    special_files: put a pipe or a terabyte of nothing in the place of a file.
    structured_outputs: hosts with slots on a part of a structured output.
    studies: play studies without a configuration.
    waiting: wait for a condition.
"""
