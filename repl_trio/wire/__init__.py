"""Sans-IO protocol code: bytes in, values out. Knows no clock, no descriptor and no task.

Loaded by the opening exchange (before anything heavy may be imported) and by the worker (which runs on Python 3.10 and
has nothing installed), so these modules import nothing but built-in C modules and each other.
"""
