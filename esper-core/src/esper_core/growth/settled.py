"""Did something change what all of torch shares? It is put back at once, and whoever did it answers for it."""

from __future__ import annotations

import torch

DTYPE = torch.float32


def disturbed() -> str | None:
    """What is not as it was when training began, in words; afterwards it is. None where nothing was touched."""
    found = []
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        found.append("turned gradients off")
    if torch.get_default_dtype() is not DTYPE:
        found.append(f"made {torch.get_default_dtype()} torch's default")
        torch.set_default_dtype(DTYPE)
    return " and ".join(found) or None
