from .formula import (
    FormulaError as FormulaError,
    evaluate_formula as evaluate_formula,
)
from .isolation import attributed_to as attributed_to
from .loader import (
    Plugins as Plugins,
    load_plugins as load_plugins,
)
from .lookup_errors import (
    UnknownComponent as UnknownComponent,
    UnusableComponent as UnusableComponent,
)
from .notebooks import html_of as html_of
from .records import (
    Component as Component,
    PluginRecord as PluginRecord,
)
from .registry import (
    ComponentRegistrar as ComponentRegistrar,
    Registry as Registry,
)
