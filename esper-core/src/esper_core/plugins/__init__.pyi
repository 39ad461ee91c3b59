from .discovery import (
    LocalFile as LocalFile,
)
from .extensions import (
    Extension as Extension,
    find_extensions as find_extensions,
)
from .formula import (
    FormulaError as FormulaError,
    evaluate_formula as evaluate_formula,
)
from .isolation import (
    FRAMEWORK as FRAMEWORK,
    LOCAL_FILE as LOCAL_FILE,
    AttributedSchedule as AttributedSchedule,
    AttributedTask as AttributedTask,
    Label as Label,
    attempt as attempt,
    attributed_to as attributed_to,
    component_problem as component_problem,
    definition_of as definition_of,
    fault_problem as fault_problem,
    hook_callers as hook_callers,
    import_target as import_target,
    is_interrupt as is_interrupt,
    is_target as is_target,
    is_third_party as is_third_party,
    location_of as location_of,
    output_to_stderr as output_to_stderr,
    package_of_frame as package_of_frame,
    summarise as summarise,
    target_of as target_of,
    top_package as top_package,
)
from .loader import (
    Plugins as Plugins,
    load_plugins as load_plugins,
)
from .lookup_errors import (
    UnknownComponent as UnknownComponent,
    UnusableComponent as UnusableComponent,
    inactive_hint as inactive_hint,
    unknown_plugin as unknown_plugin,
)
from .notebooks import (
    html_of as html_of,
    viewer as viewer,
)
from .process_state import (
    Guard as Guard,
    Scope as Scope,
)
from .records import (
    Component as Component,
    PluginRecord as PluginRecord,
)
from .registry import (
    ComponentRegistrar as ComponentRegistrar,
    Registry as Registry,
)
