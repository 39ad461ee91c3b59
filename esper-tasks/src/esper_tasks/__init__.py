"""Hosts and data for Esper, all of it offline.

    mnist1d, mnist1d_shuffled   esper_tasks.mnist1d            ten digits as short signals, and the negative control
    images_synthetic            esper_tasks.images_synthetic   eight waves in noisy colour images
    marked_sum                  esper_tasks.marked_sum         tokens that have to see one another
    byte_text                   esper_tasks.byte_text          the next byte of Python's help texts
    stripes                     esper_tasks.stripes            a task of milliseconds, for tests
    npz, csv_table              esper_tasks.arrays, .table     data of your own
    cifar10, digits             esper_tasks.cifar10, .digits   photographs of your own; scikit-learn's digits
    SIGNALS                     esper_tasks.families           problems to learn on, and others to be judged by
    PointwiseMlp                esper_tasks.pointwise_mlp      a host that cannot see a shape
    cnn1d, wide_cnn1d, cnn2d    esper_tasks.convolutional      three blocks of convolutions
    Mlp                         esper_tasks.mlp                two hidden layers over whatever has numbers
    TokenMlp                    esper_tasks.token_mlp          a host that cannot see two tokens together
    Transformer                 esper_tasks.transformer        small, causal or not

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
