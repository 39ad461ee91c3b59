"""Replay of recorded episodes, to the last bit or with another action.

    command          the command ``esper replay``
    replay           recorded episodes, reproduced or continued
    actions          actions as text, as users type them and events record them

Start reading with ``replay``, which builds on the stepping API of esper-run, ``esper_run.app.episode``.
"""
