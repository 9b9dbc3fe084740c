//! The objects in requests of `/v1/responses`.

use super::object::{NestedField, NestedObject, object, other, read, refused, skipped, unused, within};
use super::parts::{ALLOWED, FORMAT, PARTS};

const INPUT: &[NestedObject] = &[
    object(
        &["function_call"],
        &[
            read("type"),
            read("call_id"),
            read("name"),
            read("arguments"),
            unused("id"),
            unused("status"),
            unused("caller"),
            refused("namespace", &[]),
            refused("async", &["false"]),
            // OpenAI's Python client writes these names when it dumps its own types.
            refused("async_", &["false"]),
            unused("parsed_arguments"),
        ],
    ),
    object(
        &["function_call_output"],
        &[
            read("type"),
            read("call_id"),
            within("output", PARTS),
            unused("id"),
            unused("name"),
            unused("status"),
            unused("caller"),
            refused("namespace", &[]),
        ],
    ),
    object(&["item_reference"], &[read("type"), read("id")]),
    // Chat templates do not read earlier reasoning.
    skipped(&["reasoning"]),
    other(&[
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    ]),
    object(
        &["message", ""],
        &[
            read("type"),
            read("role"),
            within("content", PARTS),
            unused("id"),
            unused("phase"),
            unused("status"),
        ],
    ),
    other(&[]),
];

pub const OF_RESPONSES: &[NestedField] = &[
    within("input", INPUT),
    within(
        "tools",
        &[
            object(
                &["function"],
                &[
                    read("type"),
                    read("name"),
                    read("description"),
                    read("parameters"),
                    read("strict"),
                    refused("allowed_callers", &["[\"direct\"]"]),
                    refused("async", &["false"]),
                    refused("defer_loading", &["false"]),
                    unused("output_schema"),
                ],
            ),
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
                    read("mode"),
                    within("tools", ALLOWED),
                    within("allowed_tools", &[object(&[], &[read("mode"), within("tools", ALLOWED)])]),
                ],
            ),
            other(&[]),
        ],
    ),
    within("text", &[object(&[], &[within("format", FORMAT), unused("verbosity")])]),
    within(
        "reasoning",
        &[object(
            &[],
            &[
                read("effort"),
                unused("summary"),
                unused("generate_summary"),
                refused("context", &["\"auto\"", "\"current_turn\""]),
                refused("mode", &["\"standard\""]),
            ],
        )],
    ),
    within("response_format", FORMAT),
];
