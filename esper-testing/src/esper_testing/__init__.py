"""Conformance checks, fixtures and fakes for authors of Esper plugins.

    from esper_testing import check_blueprint

    for result in check_blueprint(MyBlueprint, spec):
        print(result.status, result.check, result.message)

Begin with ``checks`` (what a check and its result are) and ``components`` (which checks each kind of component has).

    checks              Check, CheckResult, run_checks
    components          the checks of each kind: blueprint_checks, check_blueprint, …; of the components of a plugin
    blueprints, blueprint_trials, hosts, policies, rewards, sinks, tasks
                        the checks themselves: one function for each promise
    sites, reward_episodes, fakes
                        what the checks use, and tests may: sites and a tiny host, episodes of a reward, a recorded run
    pytest_plugin       parametrize_with_checks, fixtures
    commands            ``python -m esper_testing check`` and ``new``, with the templates of ``new``

Not here: the contracts that are checked (``esper_core.leyline``) and any component. Names are imported when they are
first used, so that ``import esper_testing`` imports neither torch nor esper_core and pytest starts fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
