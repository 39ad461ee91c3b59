from .formula import (
    FormulaError as FormulaError,
)
from .formula import (
    evaluate_formula as evaluate_formula,
)
from .loader import (
    Plugins as Plugins,
)
from .loader import (
    load_plugins as load_plugins,
)
from .lookup_errors import (
    UnknownComponent as UnknownComponent,
)
from .lookup_errors import (
    UnusableComponent as UnusableComponent,
)
from .records import (
    Component as Component,
)
from .records import (
    PluginRecord as PluginRecord,
)
from .registry import (
    ComponentRegistrar as ComponentRegistrar,
)
from .registry import (
    Registry as Registry,
)
