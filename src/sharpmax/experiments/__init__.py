"""The paper's experiments and ours.

Each experiment has a frozen `Config` and `run(config) -> Result`.
"""
