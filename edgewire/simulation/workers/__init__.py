"""The worker processes of the local engine: the pool, the work queue, the channels."""
