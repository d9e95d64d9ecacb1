"""Experiments as protocols: each module has a frozen `Config` and `run(config) -> Result`."""
