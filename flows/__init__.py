"""Prefect flows: train.py is a run, iteration.py one iteration of it, serve.py the deployments."""
