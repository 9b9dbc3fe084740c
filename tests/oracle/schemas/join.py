"""Joins the schemas of the generators into `tests/fixtures/schemas.jsonl`.

    pip install jsonschema==4.26.0
    python join.py pydantic.jsonl zod.jsonl typebox.jsonl quicktype.jsonl > ../../fixtures/schemas.jsonl

Leaves out the schemas for which the generator's own instance is not valid JSON Schema, for example
because `nullable` is only a keyword of OpenAPI.
"""

import json
import re
import sys

import jsonschema
from jsonschema.exceptions import UnknownType, _WrappedReferencingError

for name in sys.argv[1:]:
    for line in open(name, encoding="utf-8"):
        one = json.loads(line)
        try:
            judge = jsonschema.validators.validator_for(one["schema"])
            judge = judge(one["schema"], format_checker=jsonschema.FormatChecker(["ipv4"]))
            if not judge.is_valid(one["instance"]):
                continue
        except (UnknownType, _WrappedReferencingError, AttributeError, re.error):
            # A type of JavaScript, a name of TypeBox, items of draft 7, or a class such as `\p{Emoji}`.
            if one["from"] == "zod-to-json-schema":
                continue
        print(line, end="")
