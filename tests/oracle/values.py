"""Expressions with numbers of all kinds and with strings marked as `safe`, as Jinja evaluates them: `tests/fixtures/values.json`.
Documents with numbers of all kinds, with the text of `json.dumps(json.loads(text))`: `tests/fixtures/numbers.json`.

The environment is the one of transformers' `utils/chat_template_utils.py`. Each row is a template, its variables as JSON, and
the text, or null where Jinja reports an error.
"""

import itertools
import json
import random
import struct
from pathlib import Path

import jinja2
from jinja2 import ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

FIXTURES = Path(__file__).parents[1] / "fixtures"
RANDOM = random.Random(62)
POWERS = [base + step for base in (2**31, 2**53, 2**63, 2**64, 2**127, 2**128) for step in (-1, 0, 1)]
FLOATS = ["-0", "-0.0", "0.0", "1e16", "1e15", "1E5", "1e-4", "1e-5", "0.0001", "1e400", "-1e400", "5e-324", "2.2250738585072014e-308",
          "1.7976931348623157e308", "1e22", "1e23", "9007199254740993.0", "0.30000000000000004", "53.630839129292724", "2.5", "15.0", "25.0",
          "196092819672058.625", "9007199254740992.5"]
ON_NUMBERS = [
    "x + y", "x - y", "x * y", "x / y", "x // y", "x % y", "x ~ y", "x < y", "x <= y", "x == y", "x != y", "x > y", "-x ~ +y", "x ** 2",
    "(x|abs) ** (y % 5)", "[x, y]", "{'a': x, 'b': [y]}", "x|string", "x|int", "x|float", "x|abs", "x|round", "x|round(2)", "x|round(-1)",
    "x|round(1, 'ceil')", "x|round(2, 'floor')", "x|tojson", "[x, y]|sum", "[x, y]|join(', ')", "[x, y]|sort", "[x, y]|sort(reverse=true)",
    "[x, y]|max", "[x, y]|min", "'%s %s' % (x, y)", "'%r' % x", "'%d' % x", "'%i|%5d|%-5d|%05d|%+d|% d' % (x, x, x, x, x, x)", "'%f' % x",
    "'%.3f %10.2f' % (x, y)", "'%e' % x", "'%g' % x", "'%.12g' % x", "'%x' % x", "'%5s|%-5s|%.2s' % (x, x, x)", "'{}'.format(x)",
    "'{0!r} {1:}'.format(x, y)", "'{:.2f}'.format(x)", "'{:d}'.format(x)", "'{:>10}|{:<10}|{:^10}'.format(x, x, x)", "'{:,}'.format(x)",
    "'{:g}'.format(x)", "'{:e}'.format(x)", "'{:.3}'.format(x)", "'{:08.3f}'.format(x)", "'{:+}'.format(x)", "'{:.1%}'.format(x)",
    "x is even", "x is odd", "x is divisibleby y", "x is number", "x is integer", "x is float", "x is lt y", "x is ge y", "x in [y, x]",
    "x|int + 1", "x|string|int", "x|string|float", "'a' ~ x", "x ~ none ~ true", "[x] + [y]", "[x, y]|map('string')|join", "true + x",
    "x and y", "not x", "x if x < y else y", "- -x", "-x|abs", "{x: 1}", "(x, y)", "{'a': x}|tojson(indent=2)", "x < y < 10**30",
    "x|format", "'%s'|format(x)", "'a'|replace('a', x)", "x|upper", "x|trim", "'ab' * (y|int % 4)", "x|length",
]
TEXTS = ["'<b>'|safe", "'<i>'", "'a & b'|safe", "'\"x\" y'|e", "3", "['<', '<u>'|safe]", "none", "1.5", "('<p>', '>'|safe)",
         "{'k': '<v>', 'm': '<w>'|safe}", "''|safe", "' <b> c '|safe"]
ON_TEXTS = [
    "p + q", "p ~ q", "p * 2", "2 * p", "p % q", "'%s'|safe % p", "'%s%s'|safe % (p, q)", "'%s-%r'|safe|format(p, q)", "'%(k)s %(m)s'|safe % p",
    "'%s-%s' % (p, q)", "'%s-%s'|format(p, q)", "p.join([q, '<'])", "p.join([q, '<'|safe])", "[p, q]|join", "[p, q]|join('<')",
    "[p, q]|join('<'|safe)", "'{}|{}'.format(p, q)", "('{}|{}'|safe).format(p, q)", "('{a}|{b!r}'|safe).format(a=p, b=q)",
    "('{0[k]} {0[m]}'|safe).format(p)", "('{k}{m}'|safe).format_map(p)", "('{:>5}'|safe).format(p)", "p.replace('b', q)", "[p, q]", "p == q",
    "p < q", "p.center(9, '<')", "p.ljust(9, '<')", "p.rjust(9, '>'|safe)", "p.split('b')", "p.rsplit('b', 1)", "p.partition('b')",
    "p.rpartition(' ')", "p.splitlines()", "p[1:]", "p[::-1]", "p[:1] + q", "p.upper()", "p.lower()", "p.title()", "p.capitalize()",
    "p.swapcase()", "p.strip()", "p.lstrip('<')", "p.rstrip('> ')", "p.zfill(6)", "p.expandtabs()", "p.removeprefix('<')",
    "p.removesuffix('>')", "p.striptags()", "p.unescape()", "p.escape('<')", "p|upper", "p|lower", "p|capitalize", "p|title", "p|trim",
    "p|center(9)", "p|indent", "p|indent('<', true)", "p|reverse", "p|first", "p|string", "p|safe", "p|e", "p|forceescape",
    "p|striptags", "p|tojson", "p|length", "p|wordcount", "p|default('<')", "p|format(q)", "p|join", "p|map('upper')|list", "p is string",
    "p.find('b')", "p.startswith('<')", "p.count('<')", "p.isupper()", "'x' + p + q", "p ~ q + '<'|safe", "p and q", "p if q else '<'",
    "[p]|map('safe')|list", "[p]|string", "p|string ~ q", "p|e|e", "(p ~ q)|e", "'<' ~ p ~ '>'", "[p, q]|min", "[p, q]|sort", "p is escaped",
]
ON_STRINGS = ["p|replace('b', q)", "p|replace('<', q, 1)", "p|truncate(2, true, q, 0)", "p|truncate(3, false, q, 0)"]


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson


def render(source, variables):
    try:
        return ENVIRONMENT.from_string(source).render(**json.loads(variables))
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, KeyError, IndexError):
        return None


def number():
    r = RANDOM
    while True:
        match r.randrange(10):
            case 0:
                return str(r.randrange(-10, 11))
            case 1:
                return str(r.choice([1, -1]) * r.choice(POWERS))
            case 2:
                return str(r.randrange(-(2 ** r.randrange(1, 200)), 2 ** r.randrange(1, 200)))
            case 3:
                text = repr(struct.unpack("d", struct.pack("Q", r.getrandbits(64)))[0])
                if text not in ("nan", "inf", "-inf"):
                    return text
            case 4:
                return repr(r.uniform(-100, 100))
            case 5:
                return repr(round(r.uniform(-1000, 1000), r.randrange(4)))
            case 6:
                return f"{r.randrange(10)}.{r.randrange(10 ** r.randrange(1, 25))}e{r.randrange(-330, 330)}"
            case 7:
                return r.choice(FLOATS)
            case 8:
                return str(r.randrange(-1000, 1000) / 8)
            case _:
                return str(r.randrange(-100000, 100000))


def rows():
    for expression in ON_NUMBERS:
        for i in range(12):
            x = number()
            y = x if i == 0 else number()
            yield f"{{{{ {expression} }}}}", f'{{"x": {x}, "y": {y}}}'
    for text in FLOATS:
        yield "{{ x }} {{ 'a' ~ x }} {{ x|tojson }} {{ -x }}", f'{{"x": {text}}}'
    yield "{{ 'a' ~ 1e-7 }} {{ 123456789012345678901234567890123456789012 + 1 }} {{ 1e400 }}", "{}"
    strings = [text for text in TEXTS if text.startswith(("'", "\""))]
    for expression, texts in [(one, TEXTS) for one in ON_TEXTS] + [(one, strings) for one in ON_STRINGS]:
        pairs = list(itertools.product(texts, texts)) if "q" in expression else [(text, "none") for text in texts]
        # Jinja computes expressions of constants with other rules, so the operands are variables.
        for p, q in RANDOM.sample(pairs, min(len(pairs), 9)):
            set_ = f"{{% set p = {p} %}}{{% set q = {q} %}}{{% set v = {expression} %}}{{{{ v is escaped }}}}|{{{{ v }}}}"
            yield set_, "{}"
            yield f"{{% autoescape true %}}{set_}{{% endautoescape %}}", "{}"


def document(depth):
    kind = RANDOM.randrange(8 if depth else 6)
    if kind < 5:
        return number()
    if kind == 5:
        return RANDOM.choice(["null", "true", '"1e400"', r'"-0 \" 123456789012345678901"', r'"\u00e9<"', '""'])
    parts = [document(depth - 1) for _ in range(RANDOM.randrange(5))]
    if kind == 6:
        return "[" + ", ".join(parts) + "]"
    return "{" + ",".join(f'"key {i} 1e999" : {part}' for i, part in enumerate(parts)) + "}"


def write(name, rows):
    text = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    (FIXTURES / name).write_text(f"[\n{text}\n]\n", encoding="utf-8")


def main():
    found = [[source, variables, render(source, variables)] for source, variables in rows()]
    # The text of some values contains an address.
    found = [row for row in found if row[2] is None or " at 0x" not in row[2]]
    write("values.json", found)
    print(f"jinja2 {jinja2.__version__}: {len(found)} rows, {sum(row[2] is None for row in found)} errors")
    documents = [document(3) for _ in range(1000)]
    write("numbers.json", [[text, json.dumps(json.loads(text), ensure_ascii=False)] for text in documents])


if __name__ == "__main__":
    main()
