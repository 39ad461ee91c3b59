from .results import ProbeFailure as ProbeFailure, ProbeResult as ProbeResult, ProbeRow as ProbeRow
from .search import ProbeOptions as ProbeOptions, probe as probe
