//! The objects in requests of `/v1/chat/completions`.

use super::object::{NestedField, NestedObject, object, other, read, refused, skipped, unused, within};
use super::parts::{ALLOWED, FORMAT, PARTS};

/// A function that the model can call. Hugging Face's tools also describe what a function returns.
const FUNCTION: &[NestedObject] = &[object(
    &[],
    &[
        read("name"),
        read("description"),
        read("parameters"),
        read("strict"),
        unused("cache_control"),
        unused("return"),
    ],
)];

/// The call of a function in an earlier answer.
const CALL: &[NestedObject] = &[object(
    &[],
    &[read("name"), read("arguments"), unused("parsed_arguments"), unused("provider_specific_fields")],
)];

const CALLS: &[NestedObject] = &[
    other(&["custom"]),
    object(
        &[],
        &[
            read("id"),
            read("type"),
            within("function", CALL),
            // Clients that collect streamed calls send the number of each call.
            unused("index"),
            unused("extra_content"),
            unused("provider_specific_fields"),
        ],
    ),
];

const MESSAGE: &[NestedField] = &[
    read("role"),
    within("content", PARTS),
    read("name"),
    read("tool_call_id"),
    within("tool_calls", CALLS),
    within("function_call", CALL),
    read("reasoning_content"),
    read("refusal"),
    refused("audio", &[]),
    // Clients send earlier answers back, with all fields that some server gave them.
    unused("annotations"),
    unused("cache_control"),
    unused("id"),
    unused("parsed"),
    unused("provider_specific_fields"),
    unused("reasoning"),
    unused("reasoning_details"),
    unused("thinking_blocks"),
];

pub const OF_CHAT: &[NestedField] = &[
    within("messages", &[object(&[], MESSAGE)]),
    within(
        "tools",
        &[
            object(&["function", ""], &[read("type"), within("function", FUNCTION), unused("cache_control")]),
            skipped(&[]),
        ],
    ),
    within(
        "tool_choice",
        &[
            object(
                &["function"],
                &[read("type"), read("name"), within("function", &[object(&[], &[read("name")])])],
            ),
            object(
                &["allowed_tools"],
                &[
                    read("type"),
                    within("allowed_tools", &[object(&[], &[read("mode"), within("tools", ALLOWED)])]),
                    read("mode"),
                    within("tools", ALLOWED),
                ],
            ),
            other(&[]),
        ],
    ),
    within("functions", FUNCTION),
    within("function_call", &[object(&[], &[read("name")])]),
    within("response_format", FORMAT),
    within(
        "stream_options",
        &[object(
            &[],
            &[
                read("include_usage"),
                unused("include_obfuscation"),
                refused("continuous_usage_stats", &["false"]),
            ],
        )],
    ),
];
