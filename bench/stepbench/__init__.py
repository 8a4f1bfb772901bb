"""Parts of bench/step.py: the model and data, the peers, the worker process and the report."""
