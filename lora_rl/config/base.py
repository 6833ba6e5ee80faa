"""What all config sections share."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the config: immutable, unknown keys fail, each field's text is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
