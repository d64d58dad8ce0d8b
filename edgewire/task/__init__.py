"""The learning problem: data sets, partitions, models, and the steps of training and evaluation."""

DEFAULT_ROOT = "./data"  # the default folder of data sets
