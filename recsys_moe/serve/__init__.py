"""The HTTP service: typed requests, bounded queues, one model at a time. Never imports Lightning.

limits and schemas say what is accepted; batcher decides when which requests run together; scoring
turns requests into responses; models keeps the current model and replaces it; http holds what all
routes share; app lists the routes; page and static/ are the page at `/`; server binds, serves and
drains.
"""
