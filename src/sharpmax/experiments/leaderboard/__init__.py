"""Every way of giving weights on the same tasks, with the same budget and the same care.

`entries` says who takes part in what, `unit` trains and examines, `board` puts it together, `cost`
times a step.
"""
