"""The standard blueprints of Esper: what a seed can grow into.

    ConvLight   esper_blueprints.conv_light   two convolutions that see neighbours       images, sequences
    Pointwise   esper_blueprints.pointwise    an MLP at each position by itself          images, sequences
    Mlp         esper_blueprints.mlp          an MLP over the features                   vectors, tokens

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
