"""Base models by name: directories in Hugging Face format, made on first use where the name is in the catalogue.

catalog.py resolves names; directory.py says what a model's directory lacks; tiny.py makes random models for tests and
smoke runs; smollm2.py converts the small real model; build.py makes directories appear whole or not at all.
"""

from lora_rl.models.catalog import MODELS, CatalogModel, check_model, list_models, read_model_config, resolve_model

__all__ = ["MODELS", "CatalogModel", "check_model", "list_models", "read_model_config", "resolve_model"]
