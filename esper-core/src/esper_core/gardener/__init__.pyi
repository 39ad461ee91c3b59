from .gardener import Gardener as Gardener
from .reports import Tended as Tended
