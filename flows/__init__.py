"""Prefect flows: train.py is a run, iteration.py one iteration of it, nightly.py a run of its own each night.

serve.py has the deployments, silence.py marks runs whose process died.
"""
