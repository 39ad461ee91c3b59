"""Rows: tensors of several networks that are computed at once, and the table of what can be computed so.

A ``Rows`` holds the tensors of E networks stacked, (E, …), and looks to the code of a host like the tensor of one of
them, (…). So a host's own forward runs once for all of them: each function of torch that it calls is looked up in
``RULES``, which computes every row by itself. What is not in the table raises ``NotFusedError``, and the networks run
one after another. Convolutions over images and attention are left out on purpose: on a CPU they gain nothing.

Every rule gives a row the same bits whatever the number of rows. Shapes: E rows, N examples, C channels in, O out,
L length, K width of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

Rule = Callable[..., Tensor]
"""Gets a function of torch and its arguments, and returns the stacked result."""

VECTOR: Final = 64
"""A multiple of the numbers that processors compute at once. Rows of so many numbers all begin with a full vector."""

LINE: Final = 8
"""Numbers that a processor reads at once. Products of matrices that begin elsewhere in memory round otherwise."""

BLOCK: Final = 8
"""Channels in multiples of which grouped convolutions take the same kernel for any number of groups above one."""

FEW: Final = 24
"""Numbers that an output of a convolution depends on, up to which a product of matrices is faster than groups."""

BATCHED: Final = 3
"""Dimensions of a stacked batch of vectors: (E, N, C)."""


class NotFusedError(Exception):
    """Several networks cannot be computed at once, for the reason that the message gives."""


def refuse(why: str) -> NoReturn:
    """Raise NotFusedError."""
    raise NotFusedError(why)


class Rows(Tensor):
    """The tensors of several networks, in ``stacked``; to whoever asks it has the shape of one of them."""

    stacked: Tensor

    @staticmethod
    def of(stacked: Tensor) -> Rows:
        """Return the rows of a stacked tensor."""
        # The first row lends its shape, dtype and device alone: a function that would read it has a rule, or raises.
        rows = stacked.detach()[0].as_subclass(Rows)
        rows.stacked = stacked
        return rows

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute a function of torch for every row."""
        if (rule := RULES.get(func)) is not None:
            return Rows.of(rule(func, *args, **(kwargs or {})))
        if func in QUESTIONS:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        # A property comes as the "__get__" of its descriptor.
        named = getattr(func, "__self__", None) if getattr(func, "__name__", "") == "__get__" else func
        refuse(f'no rule for torch\'s "{getattr(named, "__name__", func)}"')


def stack_of(value: Any) -> Tensor:
    """Return the stacked tensor of rows; NotFusedError for a tensor that belongs to no network."""
    if not isinstance(value, Rows):
        refuse("a layer gets a tensor that is neither a parameter, a buffer, nor made from the inputs")
    stack = value.stacked
    if stack.dim() > BATCHED and not stack.is_contiguous() and (swapped := stack.transpose(0, 1)).is_contiguous():
        value.stacked = as_one_call(Exchange, swapped, 0)  # kept, since the caller may change it in place
    return value.stacked


def aligned(*arguments: Any) -> list[Any]:
    """Return the arguments of an elementwise function, with the rows of each tensor before all other dimensions."""
    dims = max(argument.dim() for argument in arguments if isinstance(argument, Tensor))

    def stack(argument: Any) -> Any:
        if not isinstance(argument, Rows):
            return argument
        # (E, C) beside (E, N, C) becomes (E, 1, C): otherwise networks would be taken for examples.
        missing, stacked = dims - argument.dim(), stack_of(argument)
        return stacked[(slice(None), *[None] * missing)] if missing else stacked

    return [stack(argument) for argument in arguments]


def exact(func: Rule, *arguments: Any, **named: Any) -> Tensor:
    """Compute an elementwise function with one correct result, which every kernel returns."""
    # That of a single tensor wherever its numbers lie: two convolutions with a ReLU between them copy nothing there.
    return func(*(aligned(*arguments) if arguments[1:] else [arguments[0].stacked]), **named)


def rounded(func: Rule, *arguments: Any, **named: Any) -> Tensor:
    """Compute an elementwise function whose last bits depend on the kernel.

    Processors take several numbers at once, and those left at the end of a tensor singly, by another formula.
    """
    stacks = torch.broadcast_tensors(*(stack for stack in aligned(*arguments) if isinstance(stack, Tensor)))
    tensors = iter(stacks)
    places = [next(tensors) if isinstance(argument, Tensor) else argument for argument in arguments]
    if stacks[0][0].numel() % VECTOR == 0 and all(stack.is_contiguous() for stack in stacks):
        return func(*places, **named)

    def of_row(row: int) -> list[Any]:
        return [place[row].contiguous() if isinstance(place, Tensor) else place for place in places]

    return torch.stack([func(*of_row(row), **named) for row in range(len(stacks[0]))])


def one_by_one(func: Rule, inputs: Any, *arguments: Any, **named: Any) -> Tensor:
    """Compute a function of each example, (E, N, …), by taking all rows for one batch."""
    stack = stack_of(inputs)
    outputs = func(stack.flatten(0, 1), *arguments, **named)
    return outputs.view(*stack.shape[:2], *outputs.shape[1:])


def linear(_: Rule, inputs: Any, weight: Any, bias: Any = None) -> Tensor:
    """Compute a linear layer: (E, N, …, C) by weights (E, O, C) is (E, N, …, O)."""
    hidden, weights = stack_of(inputs), stack_of(weight)
    if hidden.dim() < BATCHED:
        refuse("a linear layer gets a tensor without examples")
    shape = hidden.shape
    examples = hidden if len(shape) == BATCHED else hidden.reshape(shape[0], -1, shape[-1])
    outputs = product(examples, weights.transpose(1, 2), None if bias is None else stack_of(bias).unsqueeze(1))
    return outputs if len(shape) == BATCHED else outputs.view(*shape[:-1], -1)


def product(left: Tensor, right: Tensor, added: Tensor | None) -> Tensor:
    """Return the matrix product of each row, plus what is added to it."""
    # Of slices, what lies between their numbers decides which kernel torch takes.
    left, right = (stack if is_dense(stack) else stack.contiguous() for stack in (left, right))
    if left.shape[2] == 1:
        outputs = left * right
    elif 1 in (left.shape[1], right.shape[2]):
        # Of a single row torch would make the product of a matrix and a vector, by another kernel with other bits.
        outputs = (left.unsqueeze(2) * right.mT.unsqueeze(1)).sum(3)
    elif len(left) > 1 and any(
        size % LINE
        for size in (left[0].numel(), left.stride(0), right[0].numel(), right.stride(0), left.shape[1] * right.shape[2])
    ):
        outputs = as_one_call(Product, left, right)
    else:
        outputs = torch.bmm(left, right)
    # Not by ``baddbmm``, which rounds otherwise for a single row.
    return outputs if added is None else outputs.add_(added)


def is_dense(stack: Tensor) -> bool:
    """Return whether the numbers of each matrix follow one another, from the beginning of a line."""
    return (stack[0].is_contiguous() or stack[0].mT.is_contiguous()) and not stack.storage_offset() % LINE


def conv1d(
    func: Rule,
    inputs: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Compute a convolution: (E, N, C, L) by weights (E, O, C, K) is (E, N, O, L)."""
    hidden, weights = inputs.stacked, stack_of(weight)
    biases = None if bias is None else stack_of(bias)
    (stride,), (padding,), (dilation,) = ((n,) if isinstance(n, int | str) else n for n in (stride, padding, dilation))
    width, channels_out, channels_in = weights.shape[-1], weights.shape[1], hidden.shape[2]
    in_blocks = channels_in % BLOCK == 0 and channels_out % BLOCK == 0
    if hidden.dim() != weights.dim() or isinstance(padding, str) or groups not in (1, channels_in if in_blocks else 1):
        refuse("a convolution in some groups, or with padding that is a text")
    if groups > 1 or (width > 1 and channels_in * width > FEW and in_blocks):
        return grouped_conv1d(func, hidden, weights, biases, stride, padding, dilation, groups=groups)
    if padding:
        hidden = functional.pad(hidden, (padding, padding))
    rows, examples, _, length = hidden.shape
    hidden, length = hidden.transpose(1, 2), (length - dilation * (width - 1) - 1) // stride + 1
    if width == 1:
        columns, weights = hidden[..., ::stride] if stride > 1 else hidden, weights.squeeze(-1)
    else:
        # As a product of matrices. From slices rather than by ``unfold``, whose gradient is slow.
        last = (length - 1) * stride + 1
        columns = torch.cat([hidden[..., tap : tap + last : stride] for tap in range(0, width * dilation, dilation)], 1)
        weights = weights.transpose(2, 3).flatten(2)
    columns = columns.reshape(rows, -1, examples * length)
    outputs = product(weights, columns, None if biases is None else biases.unsqueeze(2))
    return outputs.view(rows, channels_out, examples, length).transpose(1, 2)


def grouped_conv1d(
    func: Rule, hidden: Tensor, weights: Tensor, biases: Tensor | None, *sizes: int, groups: int
) -> Tensor:
    """Compute a convolution with the channels of every row as two groups, each with half of the examples.

    Of one group torch would make a plain convolution, by another kernel with other bits.
    """
    rows, examples, channels, length = hidden.shape
    even = functional.pad(hidden, (0, 0, 0, 0, 0, 1)) if examples % 2 else hidden
    if not (by_example := even.transpose(0, 1)).is_contiguous():
        by_example = as_one_call(Exchange, even, 0)
    twice = [None if stack is None else torch.cat([stack, stack]).flatten(0, 1) for stack in (weights, biases)]
    outputs = func(by_example.view(-1, 2 * rows * channels, length), *twice, *sizes, 2 * rows * groups)
    outputs = outputs.view(len(by_example), rows, -1, outputs.shape[-1]).transpose(0, 1)
    # The gradient of a slice is a copy, even if it leaves out nothing.
    return outputs if even is hidden else outputs[:, :examples]


class Product(torch.autograd.Function):
    """The matrix product of each row, where rows are no multiple of a line; its gradients are computed alike."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """Return the product."""
        ctx.save_for_backward(left, right)
        return product_in_lines(left, right)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both factors."""
        left, right = ctx.saved_tensors
        return product_in_lines(gradients, right.mT), product_in_lines(left.mT, gradients)


def product_in_lines(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of stacked matrices, each of which begins with a line."""
    outputs = in_lines(left.new_empty(len(left), left.shape[1], right.shape[2]))
    return torch.bmm(in_lines(left), in_lines(right), out=outputs).contiguous()


def in_lines(stack: Tensor) -> Tensor:
    """Return stacked matrices of which each begins with a line: a copy with room between them, if they do not."""
    if stack.stride(0) % LINE == 0:
        return stack
    matrices = stack.mT if stack.mT.is_contiguous() else stack
    numbers = matrices[0].numel()
    spaced = functional.pad(matrices.flatten(1), (0, -numbers % LINE))[:, :numbers].view(matrices.shape)
    return spaced if matrices is stack else spaced.mT


class PairMaximum(torch.autograd.Function):
    """The maximum of neighbours two by two along the last dimension: torch's pooling, several times as fast."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        """Return the maxima; a number without a neighbour at the end is left out, as in a pooling."""
        ctx.save_for_backward(inputs)
        return torch.maximum(*pairs(inputs))

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        """Give the gradient to the larger number, and to the first of two equal ones."""
        (inputs,) = ctx.saved_tensors
        passed = torch.empty_like(inputs) if inputs.shape[-1] % 2 == 0 else torch.zeros_like(inputs)
        (first, second), (to_first, to_second) = pairs(inputs), pairs(passed)
        torch.mul(second > first, gradients, out=to_second)
        torch.sub(gradients, to_second, out=to_first)
        return passed


class Exchange(torch.autograd.Function):
    """A copy with a dimension and the next exchanged; so is its gradient, whose sums depend on how it lies."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, first: int) -> Tensor:
        """Return the copy."""
        ctx.first = first
        return inputs.transpose(first, first + 1).contiguous()

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        """Exchange the dimensions of the gradient."""
        return gradients.transpose(ctx.first, ctx.first + 1).contiguous(), None


def as_one_call(function: Any, *arguments: Any) -> Tensor:
    """Return what a function of autograd gives; to a mode of torch, which records calls, it is one call."""
    if has_torch_function(arguments):
        return handle_torch_function(as_one_call, arguments, function, *arguments)
    return cast("Tensor", function.apply(*arguments))


def pairs(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the second of each pair along the last dimension."""
    end = inputs.shape[-1] // 2 * 2
    return inputs[..., 0:end:2], inputs[..., 1:end:2]


def max_pool1d(func: Rule, inputs: Any, kernel_size: Any, stride: Any = None, **named: Any) -> Tensor:
    """Compute a pooling; in pairs, the usual one, by a faster way."""
    if (
        (kernel_size, stride or kernel_size) == (2, 2)
        and named.get("dilation", 1) == 1
        and not any(named.get(name) for name in ("padding", "ceil_mode", "return_indices"))
    ):
        return as_one_call(PairMaximum, inputs.stacked)
    return one_by_one(func, inputs, kernel_size, stride, **named)


def batch_norm(
    func: Rule,
    inputs: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    **named: Any,
) -> Tensor:
    """Normalise every channel of every row: rows become channels."""
    hidden = stack_of(inputs)
    # ``flatten`` returns views of contiguous buffers, in which torch keeps its running averages.
    per_channel = [
        None if argument is None else stack_of(argument).flatten()
        for argument in (running_mean, running_var, weight, bias)
    ]
    # As one long example: of several torch takes sums in an order that depends on the number of channels.
    by_channel = as_one_call(Exchange, hidden, 1)
    outputs = func(by_channel.flatten(0, 1).flatten(1).unsqueeze(0), *per_channel, **named)
    return as_one_call(Exchange, outputs.view(by_channel.shape), 1)


def layer_norm(func: Rule, inputs: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Normalise the last dimensions, then scale and shift them by each row's own weights."""
    return scaled(Rows.of(func(stack_of(inputs), shape, eps=eps)), weight, bias)


def group_norm(func: Rule, inputs: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Normalise groups of channels, then scale and shift them by each row's own weights."""
    spread = [1] * (inputs.dim() - 2)
    per_channel = (
        None if value is None else Rows.of(stack_of(value).unflatten(1, (-1, *spread))) for value in (weight, bias)
    )
    return scaled(Rows.of(one_by_one(func, inputs, groups, eps=eps)), *per_channel)


def scaled(normalised: Rows, weight: Any, bias: Any) -> Tensor:
    """Return a normalised tensor times weights, plus biases, where there are any."""
    stack = normalised.stacked if weight is None else exact(torch.mul, normalised, weight)
    return stack if bias is None else exact(torch.add, Rows.of(stack), bias)


def embedding(func: Rule, inputs: Any, weight: Any, padding_idx: Any = None, **named: Any) -> Tensor:
    """Look up every row's indices in its own table: the tables are taken for one."""
    indices, tables = stack_of(inputs), stack_of(weight)
    if padding_idx is not None or any(named.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse")):
        refuse("an embedding with padding, a norm, or gradients of its own")
    rows, symbols = tables.shape[:2]
    first = torch.arange(rows, device=tables.device).view(-1, *[1] * (indices.dim() - 1)) * symbols
    # What is beyond a table is beyond all of them, too: otherwise it would be a symbol of another network.
    is_inside = (indices >= 0) & (indices < symbols)
    return func(torch.where(is_inside, indices + first, rows * symbols), tables.flatten(0, 1))


def dropout(_: Rule, inputs: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return the inputs; NotFusedError in training, because every network draws from a stream of its own."""
    if training and p:
        refuse("it draws random numbers")
    return stack_of(inputs)


def shifted(func: Rule, inputs: Any, *dims: Any, **named: Any) -> Tensor:
    """Compute a function of dimensions, in which those of a network's tensor come after the rows."""
    if not dims and not named:
        refuse("it joins all numbers of a batch")

    def shift(dim: Any) -> Any:
        if isinstance(dim, tuple | list):
            return tuple(map(shift, dim))
        return dim + 1 if isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 else dim

    return func(stack_of(inputs), *map(shift, dims), **{name: shift(value) for name, value in named.items()})


def reshaped(_: Rule, inputs: Any, *shape: Any) -> Tensor:
    """Give every row another shape."""
    stack, first = stack_of(inputs), getattr(shape[0], "shape", shape[0])
    return stack.reshape(len(stack), *(first if isinstance(first, tuple | list) else shape))


def indexed(func: Rule, inputs: Any, index: Any) -> Tensor:
    """Take a part of every row, by numbers and slices."""
    places = index if isinstance(index, tuple) else (index,)
    if any(isinstance(place, Tensor | list) for place in places):
        refuse("an index that is a tensor or a list")
    return func(stack_of(inputs), (slice(None), *places))


def kept(func: Rule, inputs: Any, *arguments: Any, **named: Any) -> Tensor:
    """Compute a function that looks at no dimension."""
    return func(stack_of(inputs), *arguments, **named)


def _table() -> Iterator[tuple[Any, Rule]]:
    by_rule: Mapping[Rule, str] = {
        exact: "relu relu_ add add_ __iadd__ __radd__ sub sub_ __isub__ __rsub__ mul mul_ __imul__ __rmul__ div"
        " __rdiv__ neg abs maximum minimum clamp square where",
        rounded: "gelu tanh sigmoid silu elu leaky_relu softplus hardswish exp lerp",
        one_by_one: "avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d",
        shifted: "mean sum transpose movedim unsqueeze flatten",
        reshaped: "view reshape view_as",
        indexed: "__getitem__",
        kept: "to float clone contiguous detach rms_norm",
        linear: "linear",
        conv1d: "conv1d",
        max_pool1d: "max_pool1d",
        batch_norm: "batch_norm",
        layer_norm: "layer_norm",
        group_norm: "group_norm",
        embedding: "embedding",
        dropout: "dropout",
    }
    for rule, names in by_rule.items():
        for name in names.split():
            # A function and a method of one name are different objects to torch.
            for owner in (functional, torch, Tensor):
                if (func := getattr(owner, name, None)) is not None:
                    yield func, rule


RULES: Final[Mapping[Any, Rule]] = MappingProxyType(dict(_table()))
"""What can be computed for several networks at once: the rule of each function of torch."""

QUESTIONS: Final = frozenset(
    {
        *(Tensor.dim, Tensor.size, Tensor.is_floating_point, Tensor.numel, Tensor.__len__),
        *(
            getattr(Tensor, name).__get__
            for name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_cpu")
        ),
    }
)
"""What is the same for every row, and may be asked of the first."""
