"""Atomic multicast in the browser: live worlds of the real protocols, and recorded runs, step by step.

    setup         what a live world is made of, and what is done in it
    live          a live world: the explorer's model with time, faults and a trace
    session       a script, and the world at its end: do, run, look, go back
    recorded      trace files, and seeds of the simulator
    scenario      files that say what happens and how it must end
    lines         steps, arrivals and waits of a trace's lines
    handlers      the code that a step stands for
    published     what the papers say of what is shown
    catalogue     what the page offers
    answers       what a page asks, and the answers
    server        HTTP and WebSockets
    inline        the page and a recording as one file
    pictures      typical runs as pictures, for the protocols' pages
"""
