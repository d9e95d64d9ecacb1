"""The leaderboard: every normaliser on the same tasks, with the same training budget.

entries       tracks, tasks and methods, and why a method cannot take part
trial         tune, train and evaluate one design on one task
experiment    all trials and the cost of a training step: run(config) -> Result
"""
