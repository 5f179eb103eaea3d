"""The papers' experiments on the simulator: deployments, closed-loop load, figures, claims and whether they hold here.

deployments: where processes are and how far apart. calibrate: what computing costs. load: one point of a curve.
recovery: a leader dies under load. figures: which points make a figure. claims: what the papers say, and judging it.
draw: CSV and PNG.
"""
