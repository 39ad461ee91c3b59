"""Trials: whether a program computes what its networks compute one after another.

Equal classes and shapes do not mean equal functions, so values are compared before a structure is trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from esper_core.fused.programs import HostTensors, Program, bare_copy
from esper_core.fused.rows import NotFusedError, refuse
from esper_core.fused.signatures import signature_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper_core.fused.programs import Losses

TOLERANCE: Final = 1e-3
"""Largest difference, as a share of the largest number. Another order of sums gives about 1e-6; another function, 1."""


def why_different(model: nn.Module, program: Program, inputs: Tensor, targets: Tensor, losses: Losses) -> str | None:
    """Return in what a program differs from its networks, or why they cannot be compared; None: in nothing.

    Two networks, the model and one with other weights, are run both ways on one half each of the examples: in training
    and in evaluation. The model itself is not run.
    """
    try:
        models = [bare_copy(model), bare_copy(model)]
        with torch.no_grad():
            for parameter in models[1].parameters():
                parameter.mul_(1.25)
        half = len(inputs) // 2
        batches_E = [tensor[: 2 * half].unflatten(0, (2, half)) for tensor in (inputs, targets)]
        networks = [HostTensors.of(copy) for copy in models]
        passed = program.train(networks, batches_E[0], batches_E[1], losses)
        fused = [passed.losses, *passed.gradients, *passed.buffers]
        alone = [_train(models[row], networks[row], losses, *(batch[row] for batch in batches_E)) for row in (0, 1)]
        names = ["loss", *(f"gradient {n}" for n in range(len(passed.gradients)))]
        for number, (stack, *rows) in enumerate(zip(fused, *alone, strict=True)):
            if not _are_close(stack, rows):
                return f"another {names[number] if number < len(names) else 'buffer'} than one after another"
        with torch.inference_mode():
            outputs_E = program.outputs(Program.stack(networks), batches_E[0])
            rows = [copy.eval()(batch) for copy, batch in zip(models, batches_E[0], strict=True)]
            return None if _are_close(outputs_E, rows) else "other outputs than one after another"
    except Exception as error:  # whatever is wrong with a network is reported where it is trained
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, NotFusedError):
            cause = cause.__cause__  # what a seed raised is the cause of a SeedFault
        return str(cause) if isinstance(cause, NotFusedError) else f"it raised {type(cause).__name__} as one program"


def _train(
    model: nn.Module, network: HostTensors, losses: Losses, inputs: Tensor, targets: Tensor
) -> list[Tensor | None]:
    """Return loss, gradients and buffers of a network that is trained on a batch by itself."""
    model.train()
    before = signature_of(model)
    loss = losses(model(inputs), targets).mean()
    gradients = torch.autograd.grad(loss, network.trained, allow_unused=True)
    if signature_of(model) != before:
        refuse("a pass changes attributes of its modules")
    return [loss.detach(), *gradients, *HostTensors.of(model).buffers]


def _are_close(stack: Tensor | None, rows: list[Tensor | None]) -> bool:
    if stack is None or any(row is None for row in rows):
        return stack is None and all(row is None for row in rows)
    expected = torch.stack([row for row in rows if row is not None])
    scale = expected.abs().max()
    # Negated comparisons would count NaN as close.
    return expected.shape == stack.shape and bool((stack - expected).abs().max() <= TOLERANCE * scale + 1e-6)
