"""Common parts of the API documents: schemas made from parameters."""

from collections.abc import Mapping, Sequence

from .parameters import Parameter
from .schemas import Schema, object_of


def describe_bodies(name: str, parameters: Sequence[Parameter]) -> Schema:
    """Return the schemas of a body by name, one for each alternative."""
    alternatives = next((parameter.alternatives for parameter in parameters if parameter.alternatives), ())
    if not alternatives:
        return {name: describe_body(parameters)}
    common = [parameter for parameter in parameters if not parameter.alternatives]
    return {
        f"{alternative.name.title()}Request": describe_body([*common, alternative], alternative.narrows)
        for alternative in alternatives
    }


def describe_body(parameters: Sequence[Parameter], narrows: Mapping[str, Schema] = {}) -> Schema:
    """Return the schema of an object. Optional fields can also be null."""
    properties = {
        parameter.name: parameter.schema
        if parameter.required
        else {**parameter.schema, "type": [parameter.schema["type"], "null"]}
        for parameter in parameters
    }
    required = [parameter.name for parameter in parameters if parameter.required]
    return object_of({**properties, **narrows}, required, closed=False)
