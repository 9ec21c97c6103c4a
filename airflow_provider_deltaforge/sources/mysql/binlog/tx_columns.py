"""Columns of the table of transactions (int64), apart so that positions load without a compiler.

Origin (ordinal, -1 without GTID), number in it, commit time in ms, offset where it starts, offset
behind its commit (-1 while open), and the id of the server that wrote it.
"""

TX_ORIGIN, TX_NUMBER, TX_TIME, TX_START, TX_STOP, TX_SERVER = range(6)
TX_COLUMNS = 6
