from .extensions import (
    Extension as Extension,
)
from .isolation import (
    attempt as attempt,
    attributed_to as attributed_to,
    import_target as import_target,
    location_of as location_of,
)
from .loader import (
    Plugins as Plugins,
    load_plugins as load_plugins,
)
from .plugin_records import (
    Component as Component,
    PluginHook as PluginHook,
    PluginRecord as PluginRecord,
)
from .registry import (
    Registry as Registry,
)
