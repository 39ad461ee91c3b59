"""Three more blueprints for Esper.

    Haar       esper_blueprints_extra.haar        gains on a wavelet split, then a mix          images, sequences
    Poly       esper_blueprints_extra.poly        the product of two linear maps               vectors, tokens
    ShiftMix   esper_blueprints_extra.shift_mix   neighbours by shifting channels, then a mix   images, sequences

The plugin registers them by name; in a program, import them from their modules. This module imports nothing.
"""
