"""Does it pay to let something decide what grows? Gardeners that learnt, beside plans, rules, chance, and the best.

players    who plays on the table, and how each is built
tuning     what was tried on the problems to learn on, and what was chosen there
glancing   plans that are chosen by what a host is like after its first step
training   gardeners learn on the table
judging    what everybody came to on problems that nobody had seen
live       the same gardeners in runs of the engine: other tasks, other hosts, and the controls
page       results as a page             figure    and as a picture
"""
