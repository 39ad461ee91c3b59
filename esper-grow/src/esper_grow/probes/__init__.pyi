from .placement import PlacementOptions as PlacementOptions, place_adapters as place_adapters
from .plans import AdapterPlace as AdapterPlace, AdapterPlan as AdapterPlan, read_plan as read_plan
from .results import ProbeFailure as ProbeFailure, ProbeResult as ProbeResult, ProbeRow as ProbeRow
from .search import ProbeOptions as ProbeOptions, probe as probe
