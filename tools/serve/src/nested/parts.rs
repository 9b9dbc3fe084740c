//! Objects that the requests of OpenAI's chat and responses share.

use super::object::{NestedField, NestedObject, object, other, read, refused, skipped, unused, within};

/// The text in a part of a message, and marks for caches and sources that change no text.
const TEXT: &[NestedField] = &[
    read("type"),
    read("text"),
    unused("annotations"),
    unused("cache_control"),
    unused("citations"),
    unused("logprobs"),
    unused("parsed"),
    unused("prompt_cache_breakpoint"),
];

/// An image in Anthropic's form.
pub const IMAGE: NestedObject = object(
    &["image"],
    &[
        read("type"),
        within(
            "source",
            &[
                object(&["base64"], &[read("type"), read("media_type"), read("data")]),
                object(&["url"], &[read("type"), read("url")]),
                other(&["file"]),
            ],
        ),
        unused("cache_control"),
        refused("transformations", &[]),
    ],
);

/// The parts of a message.
pub const PARTS: &[NestedObject] = &[
    object(&["text", "input_text", "output_text"], TEXT),
    object(&["refusal"], &[read("type"), read("refusal")]),
    IMAGE,
    object(
        &["image_url", "input_image"],
        &[
            read("type"),
            within("image_url", &[object(&[], &[read("url"), unused("detail"), unused("format")])]),
            unused("detail"),
            refused("file_id", &[]),
            unused("cache_control"),
            unused("prompt_cache_breakpoint"),
        ],
    ),
    object(
        &["input_audio"],
        &[
            read("type"),
            within("input_audio", &[object(&[], &[read("data"), read("format")])]),
            unused("cache_control"),
            unused("prompt_cache_breakpoint"),
        ],
    ),
    other(&["file", "input_file", "audio_url", "video_url"]),
    object(&[], &[read("type"), read("text"), read("refusal"), unused("cache_control"), unused("citations")]),
];

/// The format of an answer, or its constraint.
pub const FORMAT: &[NestedObject] = &[
    object(&["text"], &[read("type")]),
    object(&["json_object"], &[read("type"), read("schema")]),
    object(
        &["json_schema"],
        &[
            read("type"),
            within(
                "json_schema",
                &[object(&[], &[unused("name"), unused("description"), read("schema"), read("strict")])],
            ),
            unused("name"),
            unused("description"),
            read("schema"),
            read("strict"),
        ],
    ),
    object(&["grammar"], &[read("type"), read("grammar")]),
    object(&["regex"], &[read("type"), read("pattern"), read("regex")]),
];

/// The tools of which an answer can call one.
pub const ALLOWED: &[NestedObject] = &[
    object(
        &["function", ""],
        &[read("type"), read("name"), within("function", &[object(&[], &[read("name")])])],
    ),
    skipped(&[]),
];
