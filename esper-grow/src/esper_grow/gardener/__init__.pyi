from .checks import prune as prune
from .counterfactuals import Counterfactuals as Counterfactuals
from .gardener import (
    Gardener as Gardener,
    LoopOptions as LoopOptions,
    graft as graft,
    ungraft as ungraft,
)
from .reports import Tended as Tended
