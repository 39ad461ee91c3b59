"""Does it pay to let something decide what grows? Gardeners that learnt, beside plans, rules, chance, and the best.

players    who plays on the table, and how each is built
tuning     what was tried on the problems to learn on, and what was chosen there
glancing   plans that are chosen by what a host is like after its first step
training   gardeners learn on the table
judging    what everybody came to on problems that nobody had seen       spending   and what that took
newcomers  what is done with a blueprint that was never seen
fresh      problems that are in no table, and those of the table, from twenty other seeds
live       the same gardeners in runs of the engine: other tasks, other hosts, and the controls
other_grower   gromo among them, where it is installed
more       the gardeners and the rules in these runs, from a hundred further seeds
careful    would more caution help where nothing should grow?
steps      grown, and trained from the start, each by the size of steps that suits it
page       results as a page             figure    and as a picture
"""
