"""The study of growth against architecture search and further training, at equal compute.

``python -m benchmarks.headline --quick`` runs a small form in minutes. The study itself is ``--phase tune``, then
``--phase fresh``, then ``--phase report``; a killed command goes on where it was. ``--plan`` prints what they cost.

- ``cells``: data sets and hosts, with what may grow where, RNG seeds, and the grid of settings
- ``datasets``: a one-file plugin with the tasks and blueprints that only this study needs
- ``trainings``: one training, by a plain loop or by Esper's engine, as one record
- ``store``: records in a folder, and what is still to be trained
- ``searches``: successive halving and random search, computed from records of static networks
- ``arms``: which trainings each arm needs, and which settings were chosen for it; ``esper_settings``
- ``analysis``: comparisons, and the criteria that growth must reach
- ``report``: tables and figures, from records alone
"""
