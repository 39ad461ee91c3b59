"""The study of learned policies: ``ppo`` against plans, the heuristic, random actions and the best possible plan.

policies        the compared policies
training        settings of the heuristic, and training of policies on the table of growbench
evaluation      rewards on the held-out problems of the table, and what an episode costs
many_seeds      the same problems, and problems outside the table, with 20 RNG seeds each
runs            runs of the engine on other tasks and hosts
learning_rates  grown networks and static controls, each with its best learning rate
summary         ``results.json`` from the lines that the parts write
report          the tables and the picture of the documentation
"""
