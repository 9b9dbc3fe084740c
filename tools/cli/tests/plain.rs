//! The programs, as far as they need no IREE: checkpoints, configurations, random weights, dumps.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod advice;
mod checkpoints;
mod codes;
mod configs;
mod cuda;
mod dump;
mod hub;
mod lint;
mod manual;
mod model_files;
mod odd_files;
mod pages;
mod plan;
mod random;
#[path = "../../../irpa/hub/tests/server/mod.rs"]
mod server;
mod shards;
mod support;
mod xla;

use support::*;

/// M18: without IREE everything builds and traces; running says what is missing and how to get it.
#[cfg(not(feature = "iree"))]
#[test]
fn m18_without_iree_running_says_what_is_missing() {
    let out = folder();
    let target = out.path().join("out");
    let demo = demo();
    let demo = text(&demo);
    let words = ["needs the IREE runtime", "--features iree", "cargo xtask"];
    for command in [["generate", demo, "-p", "Once"], ["export", demo, "-o", text(&target)]] {
        refused(bare(&command).args(SMALL), 2, &words);
    }
    refused(&mut bare(&["embed", demo, "-p", "Once"]), 2, &words);
    refused(&mut bare(&["prompt", demo, "--chat", "Once"]), 2, &words);
    refused(&mut bare(&["serve", demo]), 2, &words);
    assert!(listing(out.path()).is_empty());
}

#[test]
fn a_wrong_command_line_is_refused_with_code_2() {
    let (out, demo) = (folder(), demo());
    let demo = text(&demo);
    let out = out.path().join("out");
    let cases: &[(&[&str], &str)] = &[
        (&["generte", demo], "generate"),
        (&["generate"], "--prompt"),
        (&["generate", demo], "--tokens"),
        (&["generate", demo, "-p", "a", "--tokens", "1"], "cannot be used with"),
        #[cfg(feature = "iree")]
        (&["generate", demo, "-p", "a", "--system", "b"], "--chat"),
        (&["generate", demo, "-p", "a", "--all-positions"], "--save-logits"),
        (&["generate", demo, "-p", "a", "--json-schema", "s.json", "--stop", "b"], "cannot be used with"),
        (&["chat", demo, "--grammar", "g.lark", "--stop", "b"], "cannot be used with"),
        (&["generate", demo, "--tokens", "1,x"], "invalid digit"),
        (&["generate", demo, "--tokens", "1,-2"], "-2"),
        (&["generate", demo, "-p", "a", "-n", "many"], "many"),
        (&["generate", demo, "-p", "a", "--dtype", "f99"], "f32, f16, bf16"),
        (&["embed", demo], "--text"),
        (&["embed", demo, "-p", "a", "--tokens", "1"], "cannot be used with"),
        (&["embed", demo, "--tokens", "1", "--prompt-name", "query"], "cannot be used with"),
        (&["embed", demo, "-p", "a", "--batch", "0"], "--batch"),
        (&["export", demo], "--out"),
        (&["random", demo, "-o", text(&out), "--seed", "first"], "first"),
        (&["bake", demo], "--out"),
    ];
    for (arguments, word) in cases {
        refused(&mut bare(arguments), 2, &[word]);
    }
    assert!(!out.exists());
}
