"""The study of the policy ``forecaster``: fit its coefficients, and compare it on problems and a host family held out.

problems     growth problems of convolutional hosts at three learning rates
curves       training: what is measured of a seed from its germination to the end
episodes     episodes on curves
tables       rows and episodes of the table of growbench
regressions  fitting, and calibration
report       the tables of the documentation
"""
