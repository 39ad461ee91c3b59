"""Compare learned policies with plans, the heuristic, chance and the optimum on problems of growing networks.

players        the compared policies, and how each is built
tuning         trials of settings on the training problems, and the choice
decision_tree  plans chosen by numbers of a host's first step
training       training of policies on the table
evaluation     rewards of every policy on unseen problems
costs          parameters, operations and seconds of an episode
newcomers      handling of a blueprint that was missing in training
fresh          problems inside and outside the table, from twenty other seeds
live           the same policies in runs of the engine: other tasks, other hosts, and the controls
other_grower   gromo in the same comparison, where it is installed
more           policies and heuristic in these runs, from a hundred further seeds
careful        more cautious policies where nothing should grow
steps          networks grown, and trained from the start, each with its best step size
page, figure   the results as a page and as a figure
report         tables of the published report
"""
