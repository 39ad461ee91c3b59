"""Informed birth: initial weights that maximise the first gradient of the zero layer after them.

A block x + up(f(down(x))) is the identity while up is zero. Its first step is the gradient of up, which is larger the
better the outputs of down correlate with the gradients of the loss. Among rows of given norms the best are the leading
singular directions of the product of gradients and inputs. Rows keep the norms that they were built with, so that a
learning rate that suits the plain block suits this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional, grad

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Convolution = nn.Conv1d | nn.Conv2d

ROUNDS: Final = 12
"""Power iterations."""

NOTHING: Final = 1e-6
"""Singular values squared below this share of the largest are rounding errors."""


def inform_linear(down: nn.Linear | Convolution, inputs: Tensor, gradients: Tensor) -> None:
    """Set the rows of ``down``, which may be a 1×1 convolution, to the input directions most correlated with gradients.

    Of up(down(x)) with up zero, the gradient of up is then as large as it can be for orthogonal rows of these sizes.

    inputs, gradients: (..., features), the block's inputs, and the loss gradients of its outputs. If they are zero or
    not finite, ``down`` does not change; nor does a row for which they give no direction.
    """
    if (probe := _usable(inputs, gradients)) is None:
        return
    seen, output_gradients = (values.flatten(0, -2) for values in probe)
    product = output_gradients.T @ seen
    built = down.weight.float().flatten(1)
    rows, stretch = most_stretched(built, lambda rows: rows @ product.T @ product)
    named = stretch > NOTHING * stretch[0]
    set_to = torch.where(named.unsqueeze(1), rows * built.norm(dim=1, keepdim=True), built)
    down.weight.copy_(set_to.view_as(down.weight))


def inform_convolutions(first: Convolution, last: Convolution, inputs: Tensor, gradients: Tensor) -> None:
    """Set the filters of ``first`` to those whose varying outputs correlate most with the gradients.

    Of last(relu(first(x))) with last zero. The mean of an output does not count, since the bias of last can
    produce it. Each filter gets the sign for which the ReLU passes the better half, and a bias that centres its output.
    No filter gets larger weights than it was built with, or outputs that vary more than the average before, because
    filters along a large common component of the inputs would make the first steps too long.

    inputs, gradients: as for ``inform_linear``, with the features in the second dimension. ``first`` has a bias.
    """
    if (probe := _usable(inputs, gradients)) is None:
        return
    assert first.bias is not None
    seen, output_gradients = probe
    built = first.weight.float()

    rows, stretch = most_stretched(built.flatten(1), _gains(first, last, seen, output_gradients))
    filters = (rows * built.flatten(1).norm(dim=1, keepdim=True)).view_as(built)
    usual = _spread(_outputs(first, seen, built)).mean()
    tamed = filters * _over(usual / _spread(_outputs(first, seen, filters)).clamp_min(usual), built)
    varying = _varying(_outputs(first, seen, tamed))
    gains = (_weight_gradient(last, functional.relu(half), output_gradients) for half in (varying, -varying))
    # The squared norm of the gradient of each input feature.
    up, down = (gain.square().transpose(0, 1).flatten(1).sum(dim=1) for gain in gains)
    turned = torch.where(_over(up >= down, built), tamed, -tamed)
    middle = _outputs(first, inputs.float(), turned).transpose(0, 1).flatten(1).mean(dim=1)
    named = stretch > NOTHING * stretch[0]
    first.weight.copy_(torch.where(_over(named, built), turned, built))
    first.bias.copy_(torch.where(named, -middle, first.bias.float()))


def most_stretched(rows: Tensor, there_and_back: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the orthonormal rows that a linear map stretches most, and their squared stretch factors.

    >>> stretch = torch.tensor([1.0, 3.0, 2.0])
    >>> rows, squares = most_stretched(torch.eye(3)[:2] + 1, lambda rows: rows * stretch**2)
    >>> rows.abs().round(decimals=3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> squares.round(decimals=3).tolist()
    [9.0, 4.0]

    rows: initial rows, at most as many as their length. there_and_back: applies the map and then its transpose to
    each row; the matrix of the map may be too large to build.
    """
    for _ in range(ROUNDS):
        rows = torch.linalg.qr(there_and_back(rows).T).Q.T
    squares, turn = torch.linalg.eigh(there_and_back(rows) @ rows.T)
    return turn.flip(1).T @ rows, squares.flip(0)


def _gains(first: Convolution, last: Convolution, seen: Tensor, output_gradients: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map from filters of ``first`` to the gradient of ``last`` that each yields, and back.

    A filter's gradient depends on that filter alone. So the map is computed once, as a matrix, where that takes fewer
    passes over the batch than applying it does, which is so with sequences; a matrix for images would be large.
    """
    built = first.weight
    size = built[0].numel()

    def responses(rows: Tensor) -> Tensor:
        return _varying(_outputs(first, seen, rows.view(-1, *built.shape[1:])))

    def there_and_back(rows: Tensor) -> Tensor:
        response = responses(rows)
        input_gradients = _input_gradient(
            last, response, _weight_gradient(last, response, output_gradients), output_gradients
        )
        return _weight_gradient(first, seen, _varying(input_gradients)).flatten(1)

    if size > ROUNDS * len(built):
        return there_and_back
    unit_rows = torch.eye(size, dtype=seen.dtype, device=seen.device).split(len(built))
    matrix = torch.cat(
        [_weight_gradient(last, responses(rows), output_gradients).transpose(0, 1).flatten(1) for rows in unit_rows]
    )
    product = matrix @ matrix.T
    return lambda rows: rows @ product


def _usable(inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return both as float32, scaled to at most 1; None if one of them is zero or not finite."""
    probe = inputs.float(), gradients.float()
    largest = [values.abs().amax() for values in probe]
    if not all(bool(size.isfinite()) and bool(size > 0) for size in largest):
        return None
    return probe[0] / largest[0], probe[1] / largest[1]


def _varying(response: Tensor) -> Tensor:
    """Return the features less their means over examples and places."""
    return response - response.mean(dim=(0, *range(2, response.dim())), keepdim=True)


def _spread(response: Tensor) -> Tensor:
    """Return the standard deviation of each feature."""
    return _varying(response).square().transpose(0, 1).flatten(1).mean(dim=1).sqrt()


def _over(values: Tensor, filters: Tensor) -> Tensor:
    """Return one value per filter in a shape that broadcasts over the filters."""
    return values.view(-1, *(1 for _ in filters.shape[1:]))


def _outputs(layer: Convolution, inputs: Tensor, weight: Tensor) -> Tensor:
    """Return the outputs of ``layer`` with other weights and no bias."""
    convolve = functional.conv2d if isinstance(layer, nn.Conv2d) else functional.conv1d
    return convolve(inputs, weight, padding=layer.padding, dilation=layer.dilation)


def _weight_gradient(layer: Convolution, inputs: Tensor, gradients: Tensor) -> Tensor:
    """Return the gradient of the weights of a layer like ``layer``, for any number of features before and after."""
    of: Any = grad.conv2d_weight if isinstance(layer, nn.Conv2d) else grad.conv1d_weight
    size = (gradients.shape[1], inputs.shape[1], *layer.kernel_size)
    weight: Tensor = of(inputs, size, gradients, padding=layer.padding, dilation=layer.dilation)
    return weight


def _input_gradient(layer: Convolution, inputs: Tensor, weight: Tensor, gradients: Tensor) -> Tensor:
    """Return the gradient of the inputs of a layer like ``layer`` with other weights."""
    of: Any = grad.conv2d_input if isinstance(layer, nn.Conv2d) else grad.conv1d_input
    values: Tensor = of(inputs.shape, weight, gradients, padding=layer.padding, dilation=layer.dilation)
    return values
