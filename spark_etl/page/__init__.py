"""Pages of HTML, each whole in one file.

    run         of an audit
    histories   of histories of any database
    summary     what was judged, in one line; gaps, recovery, rates
    parts       what both are made of
    drawing     lines over time, and cycles
    style       how it looks
"""
