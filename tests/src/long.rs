//! Tests that have a long form.

/// Asks for it in the environment of the tests.
const VARIABLE: &str = "TRACEWRIGHT_TEST_LONG";

/// Whether tests take their long form.
pub fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// All of these in the long form, else the first few.
pub fn first<T, const ALL: usize>(all: [T; ALL], few: usize) -> impl Iterator<Item = T> {
    all.into_iter().take(if is_wanted() { ALL } else { few })
}

/// Fixtures of families whose operations, kernels and roundings other fixtures have. The short forms run each of the other families
/// in IREE and XLA, and these in the reference evaluator or as a batch.
const LIKE_OTHERS: [&str; 25] = [
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "gemma2",
    "gemma3-4b-tower",
    "gemma4-stacked",
    "glm4_moe",
    "granite",
    "lfm2",
    "llama-dynamic",
    "ministral3",
    "mistral",
    "mistral4-tower",
    "mixtral",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_5",
    "qwen3_moe",
    "seed-oss",
    "smollm3",
];

/// Whether the short form leaves this fixture to others, because another one has its operations.
pub fn is_left_out(fixture: &str) -> bool {
    !is_wanted() && LIKE_OTHERS.contains(&fixture)
}
