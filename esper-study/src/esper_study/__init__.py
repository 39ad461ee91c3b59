"""Studies of growth policies: everything that trains networks outside of ``esper run``.

    growbench        small growth problems with a known optimum: play a policy on recorded tables, measure its regret
    gymnasium_env    a gymnasium environment, in which agents of other libraries decide what grows

Start reading with ``growbench.bench`` or ``gymnasium_env``; both build on the stepping API of the core,
``esper_core.Play``. Data, hosts and blueprints are not here: configurations name those of the other packages.
"""
