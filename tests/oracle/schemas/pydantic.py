"""Writes JSON schemas of pydantic models, and instances that pydantic wrote, for `schemas.jsonl`.

    pip install pydantic[email]==2.14.4
    python schemas_pydantic.py 700 > pydantic.jsonl

The models are random compositions of types with a fixed seed.
"""

import dataclasses
import datetime as dt
import enum
import ipaddress
import json
import pathlib
import random
import re
import sys
import typing

import typing_extensions
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, Union

import pydantic
from pydantic import (
    AnyUrl, AwareDatetime, BaseModel, Base64Bytes, ByteSize, ConfigDict, EmailStr, Field, FilePath, HttpUrl,
    IPvAnyAddress, NegativeInt, NonNegativeFloat, PositiveInt, SecretStr, StrictBool, StrictInt, TypeAdapter,
    conint, conlist, constr,
)

R = random.Random(62)
WORDS = "id name title email tags items price count owner address city street zip country status kind size color notes start end score weight height url file path parent children options values data config user team role level rate total".split()
TEXTS = ["a", "fox", "Ünï", "two words", 'a "b"', "x/y", "", "line\nbreak"]
serial = 0


def fresh(stem):
    global serial
    serial += 1
    return f"{stem}{serial}"


def constant(type_, *values):
    return type_, lambda: R.choice(values)


def text_enum():
    members = R.sample(["red", "green", "blue", "small", "large", "on", "off"], R.randint(2, 4))
    made = enum.Enum(fresh("Color"), {m.upper(): m for m in members}, type=str)
    return made, lambda: R.choice(list(made))


def int_enum():
    members = R.sample([1, 2, 3, -5, 2**31, 2**53 + 1, 1234567890123456789, 2**64 + 7], R.randint(1, 4))
    made = enum.IntEnum(fresh("Code"), {f"C{i}": m for i, m in enumerate(members)})
    return made, lambda: R.choice(list(made))


def literal():
    values = tuple(R.sample(["a", "b", "c d", 1, 2, 9007199254740993, True, False, None], R.randint(1, 4)))
    return Literal[values], lambda: R.choice(values)


def bounded_int():
    low, high = sorted((R.choice([-(2**63), -1000, -1, 0, 1]), R.choice([0, 10, 1000, 2**31 - 1, 2**53 + 1, 2**63 - 1, 2**64 - 1])))
    return conint(ge=low, le=high), lambda: R.choice([low, high, (low + high) // 2])


def bounded_float():
    low, high = R.choice([(0.0, 1.0), (-1.5, 2.25), (0.1, 53.630839129292724), (-1e3, 1e3)])
    return Annotated[float, Field(ge=low, le=high)], lambda: R.choice([low, high, (low + high) / 2])


SCALARS = [
    lambda: constant(str, *TEXTS),
    lambda: constant(int, 0, -7, 12345, 2**63),
    lambda: constant(float, 0.5, -2.25, 53.630839129292724, 1e-7, 1e22),
    lambda: constant(bool, True, False),
    lambda: constant(type(None), None),
    lambda: constant(bytes, b"a", b"bytes"),
    lambda: constant(Decimal, Decimal("1.50"), Decimal("-3")),
    lambda: constant(Annotated[Decimal, Field(max_digits=6, decimal_places=2)], Decimal("12.50")),
    lambda: constant(uuid.UUID, uuid.UUID(int=5), uuid.UUID(int=2**127 + 3)),
    lambda: constant(pathlib.Path, pathlib.Path("/a/b"), pathlib.Path("c.txt")),
    lambda: constant(FilePath, "/etc/hosts"),
    lambda: constant(AwareDatetime, dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)),
    lambda: constant(dt.date, dt.date(2024, 12, 31)),
    lambda: constant(dt.time, dt.time(1, 2, 3, tzinfo=dt.timezone.utc)),
    lambda: constant(dt.timedelta, dt.timedelta(days=1), dt.timedelta(hours=2, minutes=3, seconds=4)),
    lambda: constant(AnyUrl, AnyUrl("https://example.com/a?b=c#d")),
    lambda: constant(HttpUrl, HttpUrl("http://example.com/")),
    lambda: constant(EmailStr, "fox@example.com"),
    lambda: constant(ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    lambda: constant(ipaddress.IPv6Address, ipaddress.IPv6Address("::1")),
    lambda: constant(ipaddress.IPv4Network, ipaddress.IPv4Network("10.0.0.0/8")),
    lambda: constant(IPvAnyAddress, ipaddress.IPv4Address("10.0.0.1")),
    lambda: constant(Base64Bytes, b"aGVsbG8="),
    lambda: constant(SecretStr, SecretStr("p")),
    lambda: constant(ByteSize, 1024),
    lambda: constant(re.Pattern, re.compile("a+")),
    lambda: constant(PositiveInt, 1, 5),
    lambda: constant(NegativeInt, -1),
    lambda: constant(NonNegativeFloat, 0.0, 2.5),
    lambda: constant(StrictInt, 3),
    lambda: constant(StrictBool, False),
    lambda: constant(Any, None, 1, "x", [1.5], {"a": True}),
    lambda: constant(constr(min_length=1, max_length=8), "a", "abcdefgh"),
    lambda: constant(constr(pattern=r"^[A-Z][a-z]+$"), "Fox"),
    lambda: constant(constr(pattern=r"^\d{3}-\d{4}$", strip_whitespace=True), "555-1234"),
    lambda: constant(Annotated[int, Field(multiple_of=5)], 0, 25, -5),
    lambda: constant(Annotated[str, Field(examples=["a"], title="T", deprecated=True)], "a"),
    bounded_int, bounded_float, text_enum, int_enum, literal,
]


def scalar():
    return R.choice(SCALARS)()


def key():
    return R.choice([
        lambda: constant(str, "a", "b c"),
        lambda: constant(int, 1, -2),
        lambda: constant(Literal["x", "y"], "x", "y"),
        text_enum,
        lambda: constant(constr(pattern=r"^[a-z]{2}$"), "en", "de"),
        lambda: constant(constr(min_length=2), "en", "fr"),
        lambda: constant(uuid.UUID, uuid.UUID(int=9)),
    ])()


def container(depth):
    kind = R.choice(["list", "set", "frozenset", "tuple", "tuple*", "dict", "optional", "union", "conlist", "sequence", "boundset"])
    if kind == "dict":
        (k, sample_key), (v, sample) = key(), composed(depth + 1)
        return dict[k, v], lambda: {sample_key(): sample()}
    if kind in ("set", "frozenset", "boundset"):
        made, sample = R.choice([SCALARS[0], SCALARS[1], SCALARS[3], text_enum, int_enum, literal, SCALARS[8]])()
        if kind == "frozenset":
            return frozenset[made], lambda: frozenset({sample(), sample()})
        if kind == "boundset":
            return Annotated[set[made], Field(min_length=1, max_length=3)], lambda: {sample()}
        return set[made], lambda: {sample(), sample()}
    (made, sample) = composed(depth + 1)
    if kind == "list":
        return list[made], lambda: [sample() for _ in range(R.randint(0, 2))]
    if kind == "sequence":
        return typing.Sequence[made], lambda: [sample()]
    if kind == "conlist":
        return conlist(made, min_length=1, max_length=3), lambda: [sample() for _ in range(R.randint(1, 3))]
    if kind == "tuple":
        (other, another) = scalar()
        return tuple[made, other], lambda: (sample(), another())
    if kind == "tuple*":
        return tuple[made, ...], lambda: (sample(), sample())
    if kind == "optional":
        return Optional[made], lambda: R.choice([None, sample()])
    (other, another) = scalar()
    return Union[made, other], lambda: R.choice([sample(), another()])


def model(depth):
    shape = R.random()
    if shape < 0.12:
        return discriminated(depth)
    if shape < 0.2:
        return recursive()
    fields, samples = {}, {}
    for name in R.sample(WORDS, R.randint(1, 4 if depth else 5)):
        made, sample = composed(depth + 1)
        samples[name] = sample
        default = ... if R.random() < 0.7 else None
        extra = {"description": R.choice(["A thing.", "Line one.\nLine two."])} if R.random() < 0.2 else {}
        if R.random() < 0.1:
            extra["alias"] = name + "-" + R.choice(["x", "ü", "a/b", "a~b"])
        if default is None:
            made = Optional[made]
        fields[name] = (made, Field(default, **extra))
    config = ConfigDict(extra=R.choice(["ignore", "forbid", "forbid", "allow"]), populate_by_name=True)
    stem = R.choice(["Item", "User", "Page[int]", "Order<T>", "A/B", "Ä"])
    if depth == 0 or R.random() < 0.8:
        made = pydantic.create_model(fresh(stem), __config__=config, **fields)
        return made, lambda: made(**{n: s() for n, s in samples.items()})
    kind = R.random()
    if kind < 0.5:
        made = typing_extensions.TypedDict(fresh("Dict"), {n: f[0] for n, f in fields.items()}, total=R.random() < 0.6)
        return made, lambda: {n: s() for n, s in samples.items()}
    if kind < 0.75:
        made = dataclasses.make_dataclass(fresh("Data"), [(n, f[0]) for n, f in fields.items()])
        return made, lambda: made(**{n: s() for n, s in samples.items()})
    made = typing.NamedTuple(fresh("Named"), [(n, f[0]) for n, f in fields.items()])
    return made, lambda: made(**{n: s() for n, s in samples.items()})


def discriminated(depth):
    cases = []
    for tag in R.sample(["cat", "dog", "fish", "bird"], R.randint(2, 3)):
        (made, sample) = composed(depth + 2)
        case = pydantic.create_model(fresh("Case"), kind=(Literal[tag], ...), value=(made, ...))
        cases.append((case, tag, sample))
    union = Annotated[Union[tuple(c for c, _, _ in cases)], Field(discriminator="kind")]
    outer = pydantic.create_model(fresh("Pet"), pet=(union, ...), many=(list[union], Field(default_factory=list)))

    def sample():
        case, tag, value = R.choice(cases)
        return outer(pet=case(kind=tag, value=value()))

    return outer, sample


def recursive():
    name = fresh("Node")
    made, sample = scalar()
    kind = R.choice([list, Optional, dict])
    child = {list: f"list['{name}']", Optional: f"Optional['{name}']", dict: f"dict[str, '{name}']"}[kind]
    none = {list: [], Optional: None, dict: {}}[kind]
    space = {name: None, "Optional": Optional}
    node = type(name, (BaseModel,), {"__annotations__": {"value": made, "next": child}, "__module__": __name__, "next": none})
    globals()[name] = node
    node.model_rebuild(_types_namespace={name: node, "Optional": Optional, "list": list, "dict": dict})

    def value():
        leaf = node(value=sample())
        return node(value=sample(), next={list: [leaf], Optional: leaf, dict: {"k": leaf}}[kind])

    return node, value


def composed(depth):
    if depth >= 3 or R.random() < 0.55:
        return scalar()
    return container(depth) if R.random() < 0.7 else model(depth)


def main(count):
    seen = set()
    while len(seen) < count:
        made, sample = model(0) if R.random() < 0.8 else composed(1)
        adapter = TypeAdapter(made)
        try:
            schema = adapter.json_schema(mode=R.choice(["validation", "serialization"]))
        except pydantic.errors.PydanticInvalidForJsonSchema:
            continue
        words = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        if words in seen or len(words) > 1200:
            continue
        instance = adapter.dump_json(sample(), by_alias=True).decode()
        seen.add(words)
        print(json.dumps({"from": "pydantic", "schema": schema, "instance": json.loads(instance)}, ensure_ascii=False, separators=(",", ":")))


main(int(sys.argv[1]))
