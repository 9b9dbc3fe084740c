//! The objects in requests of `/v1/messages`.

use super::object::{NestedField, NestedObject, object, other, read, refused, skipped, unused, within};
use super::parts::{FORMAT, IMAGE};

/// The server cites no sources.
const NO_CITATIONS: &[&str] = &["{\"enabled\":false}"];

const TEXT: NestedObject =
    object(&["text"], &[read("type"), read("text"), unused("cache_control"), unused("citations")]);

const SEARCH_RESULT: NestedObject = object(
    &["search_result"],
    &[
        read("type"),
        read("title"),
        unused("source"),
        within("content", &[TEXT]),
        unused("cache_control"),
        refused("citations", NO_CITATIONS),
    ],
);

const DOCUMENT: NestedObject = object(
    &["document"],
    &[
        read("type"),
        read("title"),
        read("context"),
        within(
            "source",
            &[
                object(&["text"], &[read("type"), read("data"), unused("media_type")]),
                object(&["content"], &[read("type"), within("content", &[TEXT, IMAGE])]),
                other(&["base64", "file", "url"]),
            ],
        ),
        unused("cache_control"),
        refused("citations", NO_CITATIONS),
    ],
);

const BLOCKS: &[NestedObject] = &[
    TEXT,
    IMAGE,
    DOCUMENT,
    SEARCH_RESULT,
    object(
        &["tool_use"],
        &[
            read("type"),
            read("id"),
            read("name"),
            read("input"),
            unused("cache_control"),
            unused("caller"),
            refused("toolset_name", &[]),
        ],
    ),
    object(
        &["tool_result"],
        &[
            read("type"),
            read("tool_use_id"),
            within(
                "content",
                &[TEXT, IMAGE, DOCUMENT, SEARCH_RESULT, other(&["browser_state", "tool_reference"])],
            ),
            unused("is_error"),
            unused("cache_control"),
            refused("toolset_name", &[]),
        ],
    ),
    object(&["thinking"], &[read("type"), read("thinking"), unused("signature")]),
    skipped(&["redacted_thinking"]),
    other(&[
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "compaction",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_addition",
        "tool_removal",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    ]),
    object(&[], &[read("type"), read("text"), unused("cache_control"), unused("citations")]),
];

const TOOL: &[NestedField] = &[
    read("type"),
    read("name"),
    read("description"),
    read("input_schema"),
    read("strict"),
    unused("cache_control"),
    unused("eager_input_streaming"),
    unused("input_examples"),
    refused("allowed_callers", &["[\"direct\"]"]),
    refused("defer_loading", &["false"]),
];

pub const OF_MESSAGES: &[NestedField] = &[
    within(
        "messages",
        &[object(
            &[],
            &[
                read("role"),
                within("content", BLOCKS),
                refused("clear_at", &[]),
                refused("output_config", &[]),
            ],
        )],
    ),
    within("system", &[TEXT]),
    within("tools", &[object(&["custom", ""], TOOL), skipped(&[])]),
    within(
        "tool_choice",
        &[
            object(&["auto", "any", "none"], &[read("type"), read("disable_parallel_tool_use")]),
            object(&["tool"], &[read("type"), read("name"), read("disable_parallel_tool_use")]),
            other(&[]),
        ],
    ),
    within(
        "thinking",
        &[
            object(&["disabled"], &[read("type")]),
            object(
                &["enabled", "adaptive"],
                &[read("type"), unused("budget_tokens"), unused("display"), refused("block_binding", &[])],
            ),
            other(&[]),
        ],
    ),
    within(
        "output_config",
        &[object(&[], &[read("effort"), within("format", FORMAT), refused("task_budget", &[])])],
    ),
    within("output_format", FORMAT),
];
