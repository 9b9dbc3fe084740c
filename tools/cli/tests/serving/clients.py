"""Runs a client of the Python registry, unchanged, against a server: `clients.py CLIENT PORT`."""

import base64
import json
import pathlib
import sys

PORT = sys.argv[2]
BASE = f"http://127.0.0.1:{PORT}"
QUESTION = "Tell me a story about a brave owl."
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def check_arguments(arguments):
    assert arguments["city"] in ("Paris", "Rome"), arguments
    assert 0 <= arguments["days"] <= 9, arguments


def openai_chat():
    import openai

    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    assert client.models.list().data[0].id == "demo"
    ask = dict(model="demo", messages=[{"role": "user", "content": QUESTION}], max_tokens=24, seed=1)
    whole = client.chat.completions.create(**ask)
    text = whole.choices[0].message.content
    assert text.startswith("Once upon a time") and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24 and whole.model == "demo"
    streamed, usage = "", None
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        streamed += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert streamed == text and usage.completion_tokens == 24, (streamed, usage)

    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    more = dict(ask, tools=[tool], tool_choice="required", max_tokens=80)
    message = client.chat.completions.create(**more).choices[0].message
    [call] = message.tool_calls
    check_arguments(json.loads(call.function.arguments))
    with client.chat.completions.stream(**more) as stream:
        final = stream.get_final_completion()
    [again] = final.choices[0].message.tool_calls
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
    answer = ask["messages"] + [message, {"role": "tool", "tool_call_id": call.id, "content": "warm"}]
    assert client.chat.completions.create(**dict(ask, messages=answer, tools=[tool])).choices[0].message.content

    import pydantic

    class Animal(pydantic.BaseModel):
        legs: int = pydantic.Field(ge=0, le=9)
        tame: bool

    parsed = client.chat.completions.parse(**dict(ask, response_format=Animal)).choices[0].message.parsed
    assert isinstance(parsed, Animal)

    completion = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=6, logprobs=1)
    assert len(completion.choices[0].logprobs.tokens) == 6
    for wrong, error in [
        (dict(ask, model="other"), openai.NotFoundError),
        (dict(ask, temperature="hot"), openai.BadRequestError),
        (dict(ask, messages=[{"role": "user", "content": "owl " * 700}]), openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**wrong)
            raise AssertionError(wrong)
        except error as found:
            assert found.body["message"], found


def openai_embeddings():
    import openai

    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    # The client asks for base64 unless told otherwise.
    encoded = client.embeddings.create(model="embedder", input=["hi", "ho"])
    plain = client.embeddings.create(model="embedder", input=["hi", "ho"], encoding_format="float")
    for one, other in zip(encoded.data, plain.data):
        assert len(one.embedding) > 3
        assert all(abs(a - b) < 1e-6 for a, b in zip(one.embedding, other.embedding))


def openai_audio():
    import io
    import wave

    import openai

    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, 0, "NONE", "not compressed"))
        writer.writeframes(b"".join((i * i % 20_000 - 10_000).to_bytes(2, "little", signed=True) for i in range(30_000)))
    file = ("speech.wav", file.getvalue())
    ask = dict(model="listener", file=file, language="en", prompt="Owls")
    text = client.audio.transcriptions.create(**ask).text
    assert client.audio.transcriptions.create(**ask, response_format="text").strip() == text
    verbose = client.audio.transcriptions.create(**ask, response_format="verbose_json", timestamp_granularities=["segment"])
    assert verbose.text == text and verbose.duration == 1.875 and verbose.language == "en"
    assert "".join(segment.text for segment in verbose.segments).strip() == text
    assert all(0 <= segment.start <= segment.end <= 1.875 and segment.tokens for segment in verbose.segments)
    assert client.audio.transcriptions.create(**ask, response_format="srt").startswith("1\n00:00:0")
    assert client.audio.transcriptions.create(**ask, response_format="vtt").startswith("WEBVTT\n\n00:00:0")
    events = list(client.audio.transcriptions.create(**ask, stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * len(verbose.segments) + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]).strip() == events[-1].text == text
    del ask["language"]
    assert client.audio.translations.create(**ask, temperature=0.4).text
    for wrong in [dict(ask, file=("speech.wav", b"Dear diary")), dict(ask, language="klingon"), dict(ask, model="demo")]:
        try:
            client.audio.transcriptions.create(**wrong)
            raise AssertionError(wrong)
        except openai.BadRequestError as found:
            assert found.body["message"], found


def openai_responses():
    import openai

    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    whole = client.responses.create(model="demo", input=QUESTION, max_output_tokens=24)
    assert whole.output_text.startswith("Once upon a time") and whole.usage.output_tokens == 24
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="demo", input=QUESTION, max_output_tokens=24) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert deltas == whole.output_text, deltas
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
    called = client.responses.create(model="demo", input=QUESTION, tools=[tool], tool_choice="required")
    [call] = [item for item in called.output if item.type == "function_call"]
    check_arguments(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
    items = [{"role": "user", "content": QUESTION}, *[item.model_dump() for item in called.output], result]
    again = client.responses.create(model="demo", input=items, tools=[tool], max_output_tokens=9)
    assert again.output_text

    more = client.responses.create(model="demo", input="And then?", previous_response_id=whole.id, max_output_tokens=9)
    assert more.previous_response_id == whole.id and more.usage.input_tokens > whole.usage.input_tokens
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    client.responses.delete(whole.id)
    try:
        client.responses.retrieve(whole.id)
        raise SystemExit("a deleted response is still there")
    except openai.NotFoundError as error:
        assert error.code == "response_not_found", error


def anthropic():
    from typing import Literal

    import anthropic

    client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
    ask = dict(model="demo", max_tokens=24, messages=[{"role": "user", "content": QUESTION}])
    whole = client.messages.create(**ask)
    text = whole.content[0].text
    assert text.startswith("Once upon a time") and whole.stop_reason == "max_tokens"
    with client.messages.stream(**ask) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == text and final.usage.output_tokens == 24, (streamed, final)
    counted = client.messages.count_tokens(model="demo", messages=ask["messages"]).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    tool = {"name": "weather", "description": "Look it up", "input_schema": PARAMETERS}
    more = dict(ask, tools=[tool], tool_choice={"type": "any"}, max_tokens=80)
    called = client.messages.create(**more)
    assert called.stop_reason == "tool_use"
    check_arguments(called.content[0].input)
    with client.messages.stream(**more) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == called.content[0].input, final
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "warm"}
    turns = ask["messages"] + [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**dict(ask, messages=turns, tools=[tool])).content[0].text
    import pydantic

    class Animal(pydantic.BaseModel):
        kind: Literal["owl", "fox"]
        tame: bool

    parsed = client.messages.parse(**ask, output_format=Animal)
    assert isinstance(parsed.parsed_output, Animal), parsed
    begun = text[: len(text) // 2].rsplit(" ", 1)[0]
    turns = ask["messages"] + [{"role": "assistant", "content": begun}]
    rest = client.messages.create(**dict(ask, messages=turns, max_tokens=4)).content[0].text
    assert text.startswith(begun + rest), (text, begun, rest)
    try:
        client.messages.create(**dict(ask, model="other"))
        raise AssertionError("there is no such model")
    except anthropic.NotFoundError as error:
        assert "no model" in str(error)


def langchain():
    from typing import Literal

    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="demo", base_url=f"{BASE}/v1", api_key="none", max_retries=0, max_completion_tokens=24, temperature=0
    )
    messages = [HumanMessage(QUESTION)]
    whole = model.invoke(messages)
    assert whole.content.startswith("Once upon a time"), whole
    assert whole.usage_metadata["output_tokens"] == 24
    assert "".join(chunk.content for chunk in model.stream(messages)) == whole.content

    @tool
    def weather(days: Literal[1, 2, 3]) -> str:
        """Tell how warm it will be."""
        return "warm" * days

    longer = model.model_copy(update={"max_tokens": 80})
    bound = longer.bind_tools([weather], tool_choice="weather")
    called = bound.invoke(messages)
    [call] = called.tool_calls
    assert call["name"] == "weather" and call["args"]["days"] in (1, 2, 3), call
    joined = None
    for chunk in bound.stream(messages):
        joined = chunk if joined is None else joined + chunk
    [again] = joined.tool_calls
    assert (again["name"], again["args"]) == (call["name"], call["args"]), joined
    turns = [SystemMessage("Be short."), *messages, called, ToolMessage("warm", tool_call_id=call["id"])]
    assert model.invoke(turns + [SystemMessage("Be glad."), HumanMessage("Go on.")]).content


def cohere():
    import math

    import cohere

    client = cohere.ClientV2(api_key="none", base_url=BASE)
    ask = dict(model="embedder", texts=["a brave owl", "an owl"], embedding_types=["float", "base64"])
    query = client.embed(input_type="search_query", **ask).embeddings.float_
    document = client.embed(input_type="search_document", **ask).embeddings.float_
    # The model has a prompt for each kind.
    assert len(query) == 2 and query != document
    short = client.embed(input_type="search_query", output_dimension=8, **ask).embeddings.float_[0]
    assert len(short) == 8 and math.isclose(sum(x * x for x in short), 1, rel_tol=1e-5), short
    documents = ["one two", "three", "the owl flies at night"]
    ranked = client.rerank(model="reranker", query="the owl", documents=documents, top_n=2).results
    assert len(ranked) == 2 and ranked[0].relevance_score >= ranked[1].relevance_score
    try:
        client.embed(input_type="search_query", **ask | {"model": "other"})
        raise AssertionError("there is no such model")
    except cohere.NotFoundError as error:
        assert "no model" in str(error.body), error


def ollama():
    import ollama

    client = ollama.Client(host=BASE)
    assert [model.model for model in client.list().models] == ["demo", "embedder"]
    ask = dict(model="demo", messages=[{"role": "user", "content": QUESTION}], options={"num_predict": 24, "seed": 1})
    whole = client.chat(**ask)
    text = whole.message.content
    assert text.startswith("Once upon a time") and whole.done_reason == "length" and whole.eval_count == 24
    assert "".join(part.message.content for part in client.chat(**ask, stream=True)) == text
    assert client.generate(model="demo", prompt=QUESTION, options=ask["options"]).response == text

    import pydantic

    class Animal(pydantic.BaseModel):
        legs: int = pydantic.Field(ge=0, le=9)
        tame: bool

    answer = client.chat(**ask | {"options": {}}, format=Animal.model_json_schema()).message.content
    assert Animal.model_validate_json(answer)

    def weather(city: str) -> str:
        """Look it up.

        Args:
            city: The name of the city.
        """
        return "warm"

    called = client.chat(**ask, tools=[weather]).message
    assert called.content or called.tool_calls
    embedded = client.embed(model="embedder", input=["a brave owl", "an owl"])
    [first, second] = embedded.embeddings
    assert len(first) == len(second) and embedded.prompt_eval_count > 2
    assert client.embeddings(model="embedder", prompt="an owl").embedding == second
    assert {model.model for model in client.ps().models} == {"demo", "embedder"}
    assert "completion" in client.show("demo").capabilities
    assert client.generate(model="embedder", keep_alive=0).done_reason == "unload"
    assert [model.model for model in client.ps().models] == ["demo"]
    try:
        client.chat(**ask | {"model": "other"})
        raise AssertionError("there is no such model")
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "no model `other`" in error.error, error


def image():
    """A picture of the fixtures in base64."""
    folder = pathlib.Path(__file__).parents[4] / "tests/fixtures/images"
    return base64.b64encode((folder / "alpha.png").read_bytes()).decode()


def openai_images():
    import openai

    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    url = f"data:image/png;base64,{image()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    ask = dict(model="sees", messages=[{"role": "user", "content": content}], max_tokens=6, temperature=0)
    chat = client.chat.completions.create(**ask)
    assert chat.usage.prompt_tokens == 51, chat
    content = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "What is this?"}]
    ask = dict(model="sees", input=[{"role": "user", "content": content}], max_output_tokens=6, temperature=0)
    response = client.responses.create(**ask)
    assert response.output_text == chat.choices[0].message.content and response.usage.input_tokens == 51


def anthropic_images():
    import anthropic

    client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": image()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    ask = dict(model="sees", messages=[{"role": "user", "content": content}])
    message = client.messages.create(**ask, max_tokens=6)
    assert message.content[0].text and message.usage.output_tokens == 6, message
    assert client.messages.count_tokens(**ask).input_tokens == 51
    content[0]["source"] = {"type": "url", "url": "https://example.org/cat.png"}
    try:
        client.messages.create(**ask, max_tokens=6)
        raise AssertionError("a URL")
    except anthropic.BadRequestError as found:
        assert "loads no files from the network" in str(found), found


globals()[sys.argv[1]]()
print("good")
