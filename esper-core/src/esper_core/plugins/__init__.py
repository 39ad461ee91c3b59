"""The plugin system: find, load and call packages that extend Esper. It imports torch only where a plugin has done so.

Begin with ``load_plugins`` in ``loader``: it is the whole sequence. The modules, from the bottom up:

* ``process_state``: restore what plugin code changes of the settings and random generators of torch and Python.
* ``isolation``: call plugin code, and attribute what it raises or prints to its package.
* ``returned_values``: check what components return, and name who returned it.
* ``plugin_records``: what is known of a plugin (``PluginRecord``) and of what it provides (``Component``).
* ``discovery``: entry points and one-file plugins; ids, versions and safe mode.
* ``lookup_errors``: messages and suggestions for names that cannot be found.
* ``registry``: take and check the components that plugins add; find them by name.
* ``extensions``: what packages announce besides plugins: commands, engines and stores.
* ``loader``: the sequence from discovery to the registry; names and arguments of hooks.

The hooks themselves are specified in ``esper_core.hooks.spec``. Names below are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
