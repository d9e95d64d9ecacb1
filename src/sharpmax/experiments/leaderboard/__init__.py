"""The leaderboard: every normaliser on the same tasks, with the same training budget.

entries       tracks, tasks and methods, and why a method cannot take part
config        what is compared, with which budget
trial         tune, train and evaluate one design on one task
extend        keep the rows of an earlier leaderboard
experiment    all trials and the cost of a training step: run(config) -> Result
"""
