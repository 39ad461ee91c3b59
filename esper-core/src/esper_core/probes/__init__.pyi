from .results import ProbeFailure as ProbeFailure, ProbeResult as ProbeResult, ProbeRow as ProbeRow, viewer as viewer
from .search import probe as probe
