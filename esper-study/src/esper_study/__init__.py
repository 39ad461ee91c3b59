"""Studies of growth: everything that trains networks outside of ``esper run``.

    gymnasium_env    a gymnasium environment, in which agents of other libraries decide what grows
    replay           recorded episodes, reproduced to the last bit or continued with another action
    command          the command ``esper replay``
    actions          actions as text, as users type them and events record them

Start reading with ``gymnasium_env`` or ``replay``; both build on the stepping API of esper-run,
``esper_run.app.episode``. Data, hosts and blueprints are not here: configurations name those of the other packages.
"""
