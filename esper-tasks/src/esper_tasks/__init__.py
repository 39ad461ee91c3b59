"""Tasks and hosts for Esper; all data are generated, local, or your own, and nothing is downloaded.

    mnist1d            ten digits as short signals, and with shuffled positions, so that neighbours say little
    stripes            four patterns in noise, made in milliseconds, for tests
    images_synthetic   eight waves in noisy colour images
    marked_sum         tokens whose answer needs attention between them
    byte_text          the next byte of Python's help texts
    digits             scikit-learn's digits
    own_data           your own arrays (npz)
    text               a trained sentence encoder and reviews, from optional packages; no task
    supervised         Classification and Regression, which all tasks are, and how data are split
    hosts              MLPs, convolutional networks and a small transformer
    settings           the settings of all of them
    plugin             registers them by name

Begin with ``stripes`` for a task, and with ``hosts.PointwiseMlp`` for a host. Not here: what a task and a host are
(``esper_core.leyline``). In a program, import them from their modules; this package imports nothing by itself.
"""
