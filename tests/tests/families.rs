//! Every family, judged by what Hugging Face transformers answered: random networks whose configurations are odd, and
//! whose prompts and continuations leave their windows many times behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use tracewright::runtime::Device;
use tracewright_tests::built::compiler;
use tracewright_tests::golden::{BOUND, BuildOptions, Golden, STEPS, build, check, check_evaluated};
use tracewright_tests::long;

/// Tokens are equal and logits near at prompts around the chunk and up to the context; on the device that a user gets who
/// asks for none, which is all threads of this machine.
fn judge(fixture: &str) {
    let golden = golden(fixture);
    let tracewright::build::ProgramOptions { device, .. } =
        tracewright::build::ProgramOptions::new(&compiler().unwrap(), Path::new("cache"));
    assert_eq!(device, Device::LocalTask { workers: 0 });
    let sizes = BuildOptions { device, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
    let report = check(&golden, &subject).unwrap();
    let _ = writeln!(std::io::stderr(), "{fixture}: {report}");
    assert!(report.passes(), "{fixture}: {report}");
}

/// The same of a network that has the operations of others in the list, or of a Llama (`token_exact`), and differs in what its
/// configuration says: by the evaluator, in the long form through IREE.
fn judge_configuration(fixture: &str) {
    if long::is_wanted() {
        return judge(fixture);
    }
    let golden = golden(fixture);
    let report = check_evaluated(&golden, &BuildOptions::of(&golden), STEPS, BOUND, Ok).unwrap();
    let _ = writeln!(std::io::stderr(), "{fixture}, evaluated: {report}");
    assert!(report.passes(), "{fixture}, evaluated: {report}");
}

fn golden(fixture: &str) -> Golden {
    let golden = Golden::fixture(fixture).unwrap();
    let (c, n) = (golden.chunk, golden.context);
    let lengths: Vec<usize> = golden.prompts.iter().map(|p| p.prompt_tokens.len()).collect();
    assert!(lengths.ends_with(&[c - 1, c, c + 1, 2 * c, n - 1, n]), "{fixture}: {lengths:?}");
    let distinct = golden.prompts.iter().map(|p| p.tokens.iter().collect::<BTreeSet<_>>().len()).max();
    assert!(distinct >= Some(10), "{fixture}: a loop judges nothing");
    golden
}

/// A test in each line, of the fixture that it names.
macro_rules! judged {
    ($($test:ident: $judge:ident($fixture:literal),)+) => {
        $(
            #[test]
            fn $test() {
                $judge($fixture);
            }
        )+
    };
}

judged! {
    gemma3_five_sliding_layers_to_a_full_one: judge("gemma3-a"),
    gemma3_as_published_with_linear_scaling_and_a_soft_cap: judge_configuration("gemma3-b"),
    gemma3_the_text_tower_of_a_network_that_sees: judge_configuration("gemma3-4b-tower"),
    gemma3_with_a_head_of_its_own: judge_configuration("gemma3-untied"),
    gemma2_soft_caps: judge("gemma2"),
    gemma2_without_soft_caps_and_with_a_head_of_its_own: judge_configuration("gemma2-uncapped"),
    gemma2_a_window_in_each_layer_and_llama3_rope: judge_configuration("gemma2-sliding"),
    mistral_with_a_window: judge("mistral"),
    mistral_without_a_window: judge_configuration("mistral-full"),
    qwen2_biases: judge_configuration("qwen2"),
    qwen2_with_windows: judge_configuration("qwen2-sliding"),
    qwen3_norms_of_queries_and_keys: judge("qwen3"),
    qwen3_yarn_and_a_tied_head: judge_configuration("qwen3-yarn"),
    qwen3_windows_in_layers_that_are_listed: judge_configuration("qwen3-sliding"),
    smollm3_some_layers_without_positions: judge("smollm3"),
    smollm3_every_second_layer_without_positions: judge_configuration("smollm3-interval"),
    olmo2_norms_behind: judge("olmo2"),
    olmo2_biases_and_a_tied_head: judge_configuration("olmo2-tied"),
    olmo2_heads_that_are_no_share_of_the_hidden_size: judge_configuration("olmo2-heads"),
    phi3_fused_projections: judge("phi3"),
    phi3_longrope_beyond_the_original_context: judge_configuration("phi3-longrope"),
    phi3_rotates_a_part: judge_configuration("phi3-partial"),
    mixtral_with_an_expert_to_a_tensor: judge("mixtral"),
    mixtral_with_a_window_and_a_tied_head: judge_configuration("mixtral-sliding"),
    mixtral_with_all_experts_in_one_tensor: judge_configuration("mixtral-stacked"),
    lfm2_as_published: judge("lfm2"),
    lfm2_with_biases_and_attention_at_both_ends: judge_configuration("lfm2-bias"),
    lfm2_with_two_taps: judge_configuration("lfm2-wide"),
    gpt2_as_first_published: judge("gpt2"),
    gpt2_scores_divided_by_depth: judge_configuration("gpt2-inner"),
    gpt2_with_a_head_of_its_own: judge_configuration("gpt2-untied"),
    llama_linear_rope: judge_configuration("llama-linear"),
    llama_yarn: judge_configuration("llama-yarn"),
    llama_dynamic_rope_within_its_context: judge_configuration("llama-dynamic"),
}
