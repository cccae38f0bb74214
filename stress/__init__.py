"""The cancellation stress test of the product, over real stdio: `scripts/stress`.

`cells` are what is run, `steps` what is done to it, `session` is the model that every answer is held against, `rounds`
are the lives of servers and their ends, `record` counts and prints.
"""
