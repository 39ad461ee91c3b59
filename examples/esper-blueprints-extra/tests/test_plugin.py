"""The plugin is found with its blueprints, and each of them passes the checks of its kind."""

from esper_testing import Check, components_of, parametrize_with_checks


def test_it_is_found_with_its_blueprints() -> None:
    components = components_of("blueprints-extra")
    assert {component.short for component in components} == {"shift-mix", "haar", "poly"}


@parametrize_with_checks("blueprints-extra")
def test_it_conforms(check: Check) -> None:
    check.run()
