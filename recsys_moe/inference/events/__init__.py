"""Events that users bring after training.

observed: one event, checked; store: the last events of each user in memory; journal: the file that
outlives the process.
"""
