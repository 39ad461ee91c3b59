from .gardener import (
    Gardener as Gardener,
    graft as graft,
    ungraft as ungraft,
)
from .reports import Tended as Tended
