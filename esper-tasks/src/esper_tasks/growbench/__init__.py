"""growbench: small problems of growing of which every plan was tried. What is best is known, and so is what was missed.

A gardener is asked four times in an episode of twenty steps, and may keep up to two seeds, one after the other. For
each problem all that can come of it was trained once, by the engine itself, and written down: so an episode is played
in microseconds, to the numbers of the engine, and it is known how far anybody stays behind the best.

    puzzles    the problems: drawn from a family, some to learn on, others held out
    plans      everything that can be done in one of them
    building   trains it all, once
    table      what came of it, as it is shipped
    playing    episodes on the table, for any policy
    regret     the best there is, fixed plans, and how far somebody is behind
"""
