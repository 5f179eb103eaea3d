"""Latency in message delays and messages per multicast, measured on the real protocol code, beside the papers'.

`table.rows` measures a protocol. `published` holds the papers' figures, `stage` runs a protocol in the papers' model,
`schedule` is what such a run depends on, `search` finds the worst one, `average` samples, `consensus` is T_cons alone.
"""
