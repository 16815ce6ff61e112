"""Wrong values for every field of the request models, made from their JSON schemas.

A new field of a model is covered without a word here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from app.protocol.chat import ChatBody
from app.protocol.completions import CompletionBody
from tests.app.api import CHAT, COMPLETIONS, HI, Json

BODIES: dict[str, type[BaseModel]] = {CHAT: ChatBody, COMPLETIONS: CompletionBody}
SAMPLES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "integer": [3],
    "number": [0.5, 1e3],
    "string": ["3", "x"],
    "array": [[], [{}]],
    "object": [{}, {"a": 1}],
}
HUGE = [2**31, 2**63, 2**64, -(2**63) - 1, 10**400]


class Case(NamedTuple):
    """A body, and the place of the fault in it."""

    route: str
    fields: Json
    loc: tuple[str | int, ...]


@cache
def schema_of(route: str) -> Json:
    return BODIES[route].model_json_schema()


def alternatives(schema: Json, root: Json) -> list[Json]:
    """The schema's alternatives, references followed."""
    if "$ref" in schema:
        return alternatives(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return [found for part in schema["anyOf"] for found in alternatives(part, root)]
    return [schema]


def wrong_types(options: list[Json]) -> Iterator[Any]:
    """Values of all JSON types that no alternative has."""
    allowed = {option.get("type", "any") for option in options}
    if "any" in allowed:
        return
    for kind, values in SAMPLES.items():
        if kind not in allowed and not (kind == "integer" and "number" in allowed):
            yield from values


def out_of_range(options: list[Json]) -> Iterator[Any]:
    """Values just outside each bound, of which every alternative is of that type or of another one."""
    for option in options:
        if "enum" in option or "const" in option:
            yield "no such value"
        if "minimum" in option:
            yield option["minimum"] - 1
        if "exclusiveMinimum" in option:
            yield option["exclusiveMinimum"]
        if "maximum" in option:
            yield option["maximum"] + (1 if option["type"] == "integer" else 0.125)
        if "exclusiveMaximum" in option:
            yield option["exclusiveMaximum"]
        if option.get("minLength"):
            yield ""
        if "maxLength" in option:
            yield "x" * (option["maxLength"] + 1)
        if option.get("minItems") and len([o for o in options if o.get("type") == "array"]) == 1:
            yield []
        if "maxItems" in option:
            yield [1] * (option["maxItems"] + 1)


def wrong_items(options: list[Json], root: Json) -> Iterator[Any]:
    """Lists and objects of values that the alternative for their items does not have."""
    arrays = [option for option in options if option.get("type") == "array"]
    items = [found for array in arrays for found in alternatives(array["items"], root)]
    if arrays:
        for value in [*wrong_types(items), *out_of_range(items)]:
            yield [value]
    for option in options:
        values = option.get("additionalProperties")
        if isinstance(values, dict):
            inner = alternatives(values, root)
            for value in [*wrong_types(inner), *out_of_range(inner)]:
                yield {"0": value}


def faults(schema: Json, root: Json) -> list[Any]:
    options = alternatives(schema, root)
    return [*wrong_types(options), *out_of_range(options), *wrong_items(options, root)]


def field_cases(route: str, field: str) -> list[Case]:
    root = schema_of(route)
    return [Case(route, {field: value}, (field,)) for value in faults(root["properties"][field], root)]


def message_cases(field: str) -> list[Case]:
    """Faults in one field of a message."""
    root = schema_of(CHAT)
    return [
        Case(CHAT, {"messages": [{**HI[0], field: value}]}, ("messages", 0, field))
        for value in faults(root["$defs"]["Message"]["properties"][field], root)
    ]


def fields_of(route: str) -> list[str]:
    return list(schema_of(route)["properties"])


def message_fields() -> list[str]:
    return list(schema_of(CHAT)["$defs"]["Message"]["properties"])


def all_cases() -> list[Any]:
    """(route, field) for fields of a body, and (route, "messages.FIELD") for those of a message."""
    pairs = [(route, field) for route in BODIES for field in fields_of(route)]
    return pairs + [(CHAT, f"messages.{field}") for field in message_fields()]


def cases_for(route: str, field: str) -> list[Case]:
    head, _, inner = field.partition(".")
    return message_cases(inner) if inner else field_cases(route, head)
