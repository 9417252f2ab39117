"""The HTTP service: typed requests, bounded queues, one model at a time. Never imports Lightning.

limits, request_types, requests and bounded say what is accepted, and bodies reads it; replies says
what is answered; http holds what all routes share; app lists the routes; service turns requests
into replies, in the batches that batcher makes; models keeps the current model and replaces it;
page and static/ hold the page at `/`; server binds, serves and drains.
A score: http.Metered -> app -> bodies.read (requests) -> Service.predict -> Batcher.submit, and in
the worker Scoring.predict -> inference's Predictor.score -> one reply each -> http.reply.
"""
