"""Prints the fields of the request types of the clients `openai` and `anthropic`, one path a line.

A path names objects by their `type` or `role`, as in `messages[assistant].tool_calls[function].id`. Run it with the
clients that `cargo xtask setup --clients` installs:

    .tracewright/clients/bin/python tests/oracle/client_fields.py > tools/cli/tests/serving/client_fields.txt
"""

import typing

from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from typing_extensions import get_type_hints, is_typeddict

# Fields whose objects have the keys of users, or have no effect, or are refused as a whole.
WHOLE = """
    access_programs audio background_options billing_policy cache_control citations compaction container context_management
    conversation diagnostics fallbacks image input_schema logit_bias mcp_servers metadata moderation parameters prediction
    prompt prompt_cache_breakpoint prompt_cache_options schema web_search_options
""".split()

# Objects that Tracewright reads. The others exist only for services of OpenAI and Anthropic.
READ = """
    adaptive allowed_tools any assistant auto base64 content custom developer disabled document enabled file function
    function_call function_call_output image image_url input_audio input_file input_image input_text json_object json_schema
    message none output_text reasoning reasoning_text redacted_thinking refusal search_result summary_text system text
    thinking tool tool_result tool_use url user
""".split()


def objects(kind):
    """The typed dictionaries in a type annotation."""
    if is_typeddict(kind):
        return [kind]
    return [found for inner in typing.get_args(kind) for found in objects(inner)]


def word(kind):
    """The only value of a literal."""
    while typing.get_origin(kind) not in (None, typing.Literal):
        kind = typing.get_args(kind)[0]
    values = typing.get_args(kind)
    return values[0] if typing.get_origin(kind) is typing.Literal else None


def fields(kind, path, seen, found):
    hints = get_type_hints(kind, include_extras=True)
    for name, hint in hints.items():
        at = f"{path}.{name}" if path else name
        found.add(at)
        if name in WHOLE:
            continue
        for one in objects(hint):
            of = get_type_hints(one, include_extras=True)
            tag = next((word(of[key]) for key in ("type", "role") if key in of and word(of[key])), None)
            inner = f"{at}[{tag}]" if tag else at
            if tag not in (None, *READ):
                found.add(inner)
            elif one not in seen:
                fields(one, inner, seen | {one}, found)


REQUESTS = {
    "/v1/chat/completions": [
        chat_create_params.CompletionCreateParamsNonStreaming,
        chat_create_params.CompletionCreateParamsStreaming,
    ],
    "/v1/completions": [completion_create_params.CompletionCreateParamsNonStreaming],
    "/v1/responses": [
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ],
    "/v1/messages": [
        message_create_params.MessageCreateParamsNonStreaming,
        beta_message_create_params.MessageCreateParamsNonStreaming,
    ],
}

for endpoint, kinds in REQUESTS.items():
    found = set()
    for kind in kinds:
        fields(kind, "", {kind}, found)
    for path in sorted(found):
        print(endpoint, path)
