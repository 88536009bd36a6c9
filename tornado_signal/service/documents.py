"""Common parts of the API documents: schemas made from parameters."""

from collections.abc import Mapping, Sequence

from .parameters import Parameter
from .schemas import Schema, object_of


def describe_bodies(name: str, parameters: Sequence[Parameter]) -> Schema:
    """Return the schemas of a body by name, one for each alternative."""
    alternatives = next((each.alternatives for each in parameters if each.alternatives), ())
    if not alternatives:
        return {name: describe_body(parameters)}
    common = [each for each in parameters if not each.alternatives]
    return {
        f"{alternative.name.title()}Request": describe_body([*common, alternative], alternative.narrows)
        for alternative in alternatives
    }


def describe_body(parameters: Sequence[Parameter], narrows: Mapping[str, Schema] = {}) -> Schema:
    """Return the schema of an object. Optional fields can also be null."""
    properties = {
        each.name: each.schema if each.required else {**each.schema, "type": [each.schema["type"], "null"]}
        for each in parameters
    }
    required = [each.name for each in parameters if each.required]
    return object_of({**properties, **narrows}, required, closed=False)
