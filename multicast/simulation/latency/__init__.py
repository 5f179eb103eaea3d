"""Latency in message delays and messages per multicast, measured on the real protocol code, beside the papers'.

    table       measures a protocol (`table.rows`)
    published   the papers' figures
    stage       runs a protocol in the papers' model
    schedule    what such a run depends on
    search      finds the worst schedule
    average     samples, where consensus is always busy
    consensus   T_cons alone
"""
