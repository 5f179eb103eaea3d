"""The papers' experiments on the simulator: deployments, closed-loop load, figures, claims and whether they hold here.

    deployments   where processes are, and how far apart
    calibrate     what computing costs
    load          one point of a curve: clients in a closed loop
    recovery      a leader dies under load
    overload      a leader stands still under open load
    figures       which points make which figure
    claims        what the papers say, and whether it holds here
    output        tables, CSV and PNG
"""
