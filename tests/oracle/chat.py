"""Chat templates × conversations, rendered by transformers, as `tests/fixtures/chat.json`.

The templates are our own, in the manner of the well-known families, one file each in `templates/`.
"""

import datetime
import json
import time
from pathlib import Path

import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

OUT = Path(__file__).parents[1] / "fixtures" / "chat.json"
NOW = datetime.datetime(2025, 3, 7, 9, 5, 3)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# Only its chat methods are used.
TOKENIZER = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **SPECIAL_TOKENS)


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, name, id):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather in a place & at a <time>.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Town, e.g. \"Zürich\" or '東京'"}, "days": {"type": "integer", "default": 3, "minimum": 1},
        "unit": {"type": "string", "enum": ["°C", "°F"]},
    }, "required": ["place"]},
}}
ADD = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}, "return": {"type": "number"}}}
SHAPES = {"type": "function", "function": {"name": "shapes", "description": "All kinds of types.", "parameters": {"type": "object", "properties": {
    "names": {"type": "array", "items": {"type": "string"}, "nullable": True}, "sizes": {"type": "array", "items": {"type": "number"}},
    "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "integer"}}, "required": ["x"]}},
    "either": {"oneOf": [{"type": "string", "description": "a name"}, {"type": "integer", "default": 3}], "default": "a"}, "maybe": {"type": ["string", "null"]},
    "unit": {"type": "string", "enum": ["m", "ft"], "default": "m"}, "deep": {"type": "object"}, "flag": {"type": "boolean", "default": True}, "note": {"type": "string", "nullable": True}, "any": {}, "list": {"type": "array"},
}, "required": ["names", "either"]}}}
CONVERSATIONS = {
    "single": {"messages": [user("Hello, how are you?")]},
    "system": {"messages": [system("Be brief."), user("What is the sea?"), assistant("Salt water."), user("And a lake?")]},
    "empty_system": {"messages": [system(""), user("Who wrote this?")]},
    "empty_content": {"messages": [user(""), assistant(""), user(" ")]},
    "long": {"messages": [m for i in range(4) for m in (user(f"Question {i}?"), assistant(f"Answer {i}."))] + [user("Is that all?")]},
    "unicode": {"messages": [system("Réponds en français, s'il te plaît."), user("Où est l'été? 🌞👩‍👩‍👧 日本語 עברית е\u0301 \u00a0\u200b"), assistant("L'été est là — «ici» … ½")]},
    "markup": {"messages": [user("Is 1 < 2 & 3 > 2? <b>'bold'</b> \"quoted\" &amp; {{ braces }} {% raw %}"), assistant("Yes: 1 < 2 && 3 > 2; it's 'so' \\ \"true\"."), user("</s><|im_end|>")]},
    "spaces": {"messages": [system("  lead and trail \n"), user("\n\n  two lines\n\tand a tab \n"), assistant("\n answer \n\n"), user("  ")]},
    "code": {"messages": [user("Fix this:\n```python\ndef f(x):\n\treturn {'a': \"b\\n\"}[x]\n```\r\nThanks!"), assistant("```python\ndef f(x):\n    return 1\n```")]},
    "assistant_last": {"messages": [user("Count to three"), assistant("One, two,")]},
    "assistant_first": {"messages": [assistant("Welcome!"), user("Hi")]},
    "two_users": {"messages": [user("Hi"), user("Are you there?")]},
    "two_systems": {"messages": [system("First."), system("Second."), user("Go on.", name="ada")]},
    "nothing": {"messages": []},
    "parts": {"messages": [user([{"type": "text", "text": " What is this? "}, {"type": "image"}]), assistant("A cat."), user([{"type": "text", "text": "Sure?"}])]},
    "reasoning": {"messages": [user("What is 6 × 7?"), assistant("It is 42.", reasoning_content="6 × 7 = 42\n"), user("And 6 × 8?"), assistant("<think>\n6 × 8 = 48\n</think>\n\nIt is 48."), user("Half of it?")]},
    "no_thinking": {"messages": [user("Quick: 2 + 2?")], "variables": {"enable_thinking": False}},
    "thinking": {"messages": [system("Be brief. /no_think"), user("Slowly: 2 + 2?")], "variables": {"enable_thinking": True}},
    "effort": {"messages": [user("Look it up.")], "tools": [WEATHER, SHAPES], "variables": {"reasoning_effort": "low", "builtin_tools": ["browser", "code_interpreter", "python"], "model_identity": "You are <test> & more."}},
    "other_tools": {"messages": [user("Use them."), assistant("", tool_calls=[call("browser", {"query": "a \"b\""}, "call00001")]), result("found", "browser", "call00001")], "variables": {"custom_tools": [ADD], "xml_tools": [ADD, WEATHER], "python_tools": ["def f(x: int) -> str:\n    ..."], "builtin_tools": ["browser"]}},
    "tools": {"messages": [system("Use the functions."), user("How is the weather?")], "tools": [WEATHER, ADD]},
    "tool_call": {"messages": [user("How is the weather in Zürich?"), assistant("", tool_calls=[call("weather", {"place": "Zürich", "unit": "°C"}, "abcdefghi")]), result('{"sky": "clear", "t": 21.5}', "weather", "abcdefghi")], "tools": [WEATHER]},
    "tool_calls": {"messages": [
        user("Weather in A & B, and 1e-7 + 0.5?"), assistant(None, tool_calls=[call("weather", {"place": "A & B <c>"}, "call00001"), call("add", {"a": 1e-7, "b": 0.5, "c": [1e16, 3.0, -0.0, 12345678901234567890, True, None], "d": {}}, "call00002")]),
        result("rain", "weather", "call00001"), result("0.5000001", "add", "call00002"), assistant("Rain, and a bit over a half."), user("Thanks"),
    ], "tools": [WEATHER, ADD]},
    "tool_object": {"messages": [user("Add."), assistant("", tool_calls=[call("add", {"a": 1, "b": 2}, "short")]), result({"content": 3, "ok": True}, "add", "short")], "tools": [ADD]},
    "date": {"messages": [system("You know the date."), user("Which day is it?")], "variables": {"date_string": "1 Jan 2001", "persona": "a <clock> & calendar"}},
    "tools_outside": {"messages": [user("Add 1 and 2.")], "tools": [ADD], "variables": {"tools_in_user_message": False}},
    "documents": {"messages": [user("Summarise."), assistant("Done."), user("Shorter.")], "variables": {"documents": [{"title": "One & <two>", "text": "First line.\nSecond line."}, {"title": "Ü", "year": 1999, "snippet": "short"}]}},
}
# Without a generation prompt only where it makes a difference of its own.
WITHOUT_PROMPT = ["single", "system", "assistant_last", "tool_call", "reasoning", "spaces", "nothing"]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(template, conversation, add_generation_prompt):
    try:
        text = TOKENIZER.apply_chat_template(
            conversation["messages"], tools=conversation.get("tools"), chat_template=template, add_generation_prompt=add_generation_prompt,
            tokenize=False, **conversation.get("variables", {}),
        )
        return {"text": text}
    except jinja2.exceptions.TemplateError as error:
        # `raise_exception` raises the base class itself; its subclasses are the engine's own complaints.
        return {"error": error.message if type(error) is jinja2.exceptions.TemplateError else None}
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        return {"error": None}


def main():
    start = time.time()
    chat_template_utils.datetime = Clock
    templates = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).with_name("templates").glob("*.jinja"))}
    cases = []
    for name, template in templates.items():
        for label, conversation in CONVERSATIONS.items():
            for prompt in [True, False] if label in WITHOUT_PROMPT else [True]:
                cases.append({"template": name, "conversation": label, "add_generation_prompt": prompt, **render(template, conversation, prompt)})
        mine = [c for c in cases if c["template"] == name]
        failed = [c for c in mine if "error" in c]
        print(f"{name}: {len(mine)} cases, {sum(c['error'] is None for c in failed)} engine errors, {sum(c['error'] is not None for c in failed)} raised")
    # Small templates, one a line: what an expression gives, or null where it is an error.
    sources = Path(__file__).with_name("expressions.txt").read_text(encoding="utf-8").splitlines()
    expressions = [[source, render(source, CONVERSATIONS["system"], True).get("text")] for source in sources]
    print(f"{len(expressions)} expressions, {sum(text is None for _, text in expressions)} errors")
    head = {"reference": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}", "now": NOW.isoformat() + "Z", "special_tokens": SPECIAL_TOKENS}
    lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
    for key, table in (("templates", templates), ("conversations", CONVERSATIONS)):
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in table.items())
        lines.append(f'"{key}": {{\n{rows}\n}}')
    for key, rows in (("expressions", expressions), ("cases", cases)):
        rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
        lines.append(f'"{key}": [\n{rows}\n]')
    OUT.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    print(f"{len(cases)} cases, {OUT.stat().st_size / 1e3:.0f} kB, {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
