"""Memory layout: images are stored channels last if host and blueprints allow it in a dry run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Variety, graft
from esper_core.leyline import Action, BlueprintSpec, Op, Site, Split
from esper_core.settings import OptimizersConfig
from esper_core.trainer.batches import BatchOrder, Resident, chunks
from esper_core.trainer.environment import Recipe
from tests.support.core_worlds import Net, begin, change_recipe, make_recipe, plain_growth, zeroed

Flat = Callable[[Tensor], Tensor]


def host(flat: Flat = lambda hidden: hidden.flatten(1), look: Flat = lambda inputs: inputs) -> nn.Module:
    """Two convolutions and a head; flat: how features become a vector, look: how the examples are viewed."""
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    late, head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 36, 3)
    return Net(lambda net, x: net.head(flat(torch.relu(net.late(net.stem(look(x)))))), stem=stem, late=late, head=head)


def viewed(hidden: Tensor) -> Tensor:
    """View the memory in another shape, and back."""
    return hidden.view(len(hidden), -1).view(hidden.shape)


def variety(look: Flat) -> Variety:
    """x + conv(x), the convolution at 0."""

    def block(site: Site) -> nn.Module:
        conv = zeroed(nn.Conv2d(site.channels, site.channels, 3, padding=1, bias=False))
        return Net(lambda net, hidden: look(hidden) + net.conv(look(hidden)), conv=conv)

    return Variety("test/seed", BlueprintSpec("image", starts_as_identity=True), block)


def images(examples: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 3, (examples,), generator=generator)
    inputs = torch.randn(examples, 3, 6, 6, generator=generator) + targets.view(-1, 1, 1, 1)
    return Split(inputs, targets)


def recipe_of(build: Any = host, *, block: Flat = lambda hidden: hidden, **more: Any) -> Recipe:
    splits: dict[Any, Split] = {name: images(60, seed) for seed, name in enumerate(("train", "validation", "test"))}
    return change_recipe(make_recipe(host=build, variety=variety(block)), data=splits, **more)


def is_channels_last(model: nn.Module) -> bool:
    weight = next(parameter for name, parameter in model.named_parameters() if name == "late.weight")
    return weight.is_contiguous(memory_format=torch.channels_last)


def tried(recipe: Recipe) -> tuple[Recipe, nn.Module]:
    model = recipe.build_host()
    graft(model, recipe.slots, example=recipe.data["train"].inputs[:2])
    return recipe.laid_out(model), model


def test_images_and_weights_lie_channels_last_and_all_numbers_are_the_same():
    torch.manual_seed(3)
    recipe = recipe_of()
    laid, grafted = tried(recipe)
    assert is_channels_last(laid.build_host())
    assert is_channels_last(grafted)
    assert not is_channels_last(recipe.build_host()), "the recipe that was given is unchanged"

    inputs, plain = recipe.data["test"].inputs, host()
    twin = host().to(memory_format=torch.channels_last)
    twin.load_state_dict(plain.state_dict())
    torch.testing.assert_close(twin(inputs), plain(inputs))

    resident, other = (Resident(variant.data["train"]) for variant in (recipe, laid))
    batch, expected = other.next(BatchOrder(60, 20, 7)), resident.next(BatchOrder(60, 20, 7))
    assert all(map(torch.equal, batch, expected))
    for inputs in [batch[0], *(chunk for chunk, _ in chunks(laid.data["validation"], torch.device("cpu")))]:
        assert inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("incubation", ["shadow", "branch"])
@pytest.mark.parametrize("implementation", ["fused", "plain"])
def test_a_seed_learns_the_same_in_either_layout(incubation, implementation):
    """Gradients of convolutions lie like the images, their parameters do not; fused steps take what lies first."""
    how = {"implementation": implementation}
    optimizers = OptimizersConfig.model_validate({"host": how, "seed": how})
    recipe = recipe_of(optimizers=optimizers, growth=plain_growth(incubation=incubation))
    laid, _ = tried(recipe)
    learnt = []
    for variant in (recipe, laid):
        environment = begin(variant)
        environment.network.apply(Action(Op.GERMINATE, "early", "test/seed"), 0)
        environment.train()
        (seed,) = environment.network.garden.living_seeds()
        learnt.append([parameter.detach() for parameter in seed.parameters()])
    (plain,), (other,) = learnt
    assert plain.abs().max() > 1e-4
    torch.testing.assert_close(other, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "block"),
    [
        (lambda: host(lambda hidden: hidden.view(len(hidden), -1)), torch.clone),
        (host, viewed),
        (lambda: host(look=viewed), torch.clone),
    ],
    ids=["a host that views features", "a blueprint that views features", "a host that views its input"],
)
def test_a_host_or_blueprint_that_views_memory_in_another_shape_keeps_its_layout(build, block):
    recipe = recipe_of(build, block=block)
    laid, tried_on = tried(recipe)
    assert laid is recipe
    assert not is_channels_last(tried_on)
    environment = begin(laid)
    environment.network.apply(Action(Op.GERMINATE, "early", "test/seed"), 0)
    environment.train()
    assert environment.network.lost.take() == []
