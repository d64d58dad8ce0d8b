"""The learning problem: data sets, partitions, models, and the steps of training and evaluation."""
