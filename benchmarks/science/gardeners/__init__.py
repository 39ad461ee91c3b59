"""Compare learned policies with plans, rules, chance and the optimum on problems of growing networks.

players        the policies that play on the table, and how each is built
tuning         trials of settings on the training problems, and the choice
glancing       plans chosen from the first step of a host
training       training of policies on the table
judging        rewards of every player on unseen problems
spending       what that cost
newcomers      what is done with a blueprint that was missing in training
fresh          problems that are in no table, and those of the table, from twenty other seeds
live           the same policies in runs of the engine: other tasks, other hosts, and the controls
other_grower   gromo among them, where it is installed
more           policies and rules in these runs, from a hundred further seeds
careful        more cautious policies where nothing should grow
steps          grown, and trained from the start, each with its best step size
page, figure   the results as a page and as a picture
"""
