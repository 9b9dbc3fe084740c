//! Every family, judged by what Hugging Face transformers answered: random networks whose configurations are odd, and
//! whose prompts and continuations leave their windows many times behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use tracewright::load::LoadOptions;
use tracewright::runtime::Device;
use tracewright_tests::built::compiler;
use tracewright_tests::golden::{ALL, BuildOptions, Golden, build, check};

/// Tokens are equal and logits near at prompts around the chunk and up to the context; on the device that a user gets who
/// asks for none, which is all threads of this machine.
fn judge(fixture: &str) {
    let golden = Golden::fixture(fixture).unwrap();
    let (c, n) = (golden.chunk, golden.context);
    let lengths: Vec<usize> = golden.prompts.iter().map(|p| p.prompt_tokens.len()).collect();
    assert!(lengths.ends_with(&[c - 1, c, c + 1, 2 * c, n - 1, n]), "{fixture}: {lengths:?}");
    let distinct = golden.prompts.iter().map(|p| p.tokens.iter().collect::<BTreeSet<_>>().len()).max();
    assert!(distinct >= Some(10), "{fixture}: a loop judges nothing");

    let LoadOptions { device, .. } = LoadOptions::new(&compiler().unwrap(), Path::new("cache"));
    assert_eq!(device, Device::LocalTask { workers: 0 });
    let sizes = BuildOptions { device, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, ALL, Ok).unwrap();
    let report = check(&golden, &subject).unwrap();
    let _ = writeln!(std::io::stderr(), "{fixture}: {report}");
    assert!(report.passes(), "{fixture}: {report}");
}

/// A test in each line, of the fixture that it names.
macro_rules! judged {
    ($($test:ident: $fixture:literal,)+) => {
        $(
            #[test]
            fn $test() {
                judge($fixture);
            }
        )+
    };
}

judged! {
    gemma3_five_sliding_layers_to_a_full_one: "gemma3-a",
    gemma3_as_published_with_linear_scaling_and_a_soft_cap: "gemma3-b",
    gemma3_the_text_tower_of_a_network_that_sees: "gemma3-4b-tower",
    gemma2_soft_caps: "gemma2",
    mistral_with_a_window: "mistral",
    mistral_without_a_window: "mistral-full",
    qwen2_biases: "qwen2",
    qwen2_with_windows: "qwen2-sliding",
    qwen3_norms_of_queries_and_keys: "qwen3",
    smollm3_some_layers_without_positions: "smollm3",
    smollm3_every_second_layer_without_positions: "smollm3-interval",
    olmo2_norms_behind: "olmo2",
    phi3_fused_projections: "phi3",
    phi3_longrope_beyond_the_original_context: "phi3-longrope",
    phi3_rotates_a_part: "phi3-partial",
    mixtral_with_an_expert_to_a_tensor: "mixtral",
    mixtral_with_a_window_and_a_tied_head: "mixtral-sliding",
    mixtral_with_all_experts_in_one_tensor: "mixtral-stacked",
    lfm2_as_published: "lfm2",
    lfm2_with_biases_and_attention_at_both_ends: "lfm2-bias",
    lfm2_with_two_taps: "lfm2-wide",
    gpt2_as_first_published: "gpt2",
    gpt2_scores_divided_by_depth: "gpt2-inner",
    gpt2_with_a_head_of_its_own: "gpt2-untied",
    llama_linear_rope: "llama-linear",
    llama_yarn: "llama-yarn",
    llama_dynamic_rope_within_its_context: "llama-dynamic",
}
