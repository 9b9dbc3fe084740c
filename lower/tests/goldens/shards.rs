//! Compares how tensors are partitioned with golden texts.

use expect_test::{ExpectFile, expect_file};
use targets::{ShardRule, Target};
use trace::Trace;
use tracewright_lower::{EntryShards, Shards, expand, leaves_experts_whole, xla};

/// Attention with two key heads and `groups` query heads per key head, cached keys, and a norm of
/// the keys.
pub fn attention(groups: usize) -> Trace {
    let rows = 8 * groups;
    let text = format!(
        r#"entry @decode {{
  %0 = input 0 "x" () : f32[5,8] {{S,D}} from "model" at "toy.rs":1
  %1 = input 1 "keys0" role=state(kv.keys, layer 0) () : f32[2,5,4] {{K,N,E}} from "model" at "toy.rs":1
  %2 = parameter "q" () : f32[{rows},8] {{K=2*G={groups}*E=4,D}} from "model" at "toy.rs":1
  %3 = parameter "norm" () : f32[{rows}] {{K=2*G={groups}*E=4}} from "model" at "toy.rs":1
  %4 = parameter "plain" () : f32[8] {{D}} from "model" at "toy.rs":1
  %5 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32 (%0, %2) : f32[5,{rows}] from "model" at "toy.rs":1
  %6 = reshape shape=[5,2,{groups},4] (%5) : f32[5,2,{groups},4] {{S,K,G,E}} from "model" at "toy.rs":1
  %7 = permute order=[1,2,0,3] (%6) : f32[2,{groups},5,4] {{K,G,S,E}} from "model" at "toy.rs":1
  %8 = sdpa mask=[] scale=none softcap=none offset=false (%7, %1, %1) : f32[2,{groups},5,4] {{K,G,S,E}} from "model" at "toy.rs":1
  %9 = binary kind=add (%1, %1) : f32[2,5,4] {{K,N,E}} from "model" at "toy.rs":1
  return %8 "y"
  return %9 "keys0" role=state(kv.keys, layer 0)
}}
"#
    );
    text.parse().unwrap()
}

/// Checks how Tracewright partitions all tensors of `attention`, or the error.
fn check_shards(groups: usize, mesh: &str, rules: &[&str], expected: ExpectFile) {
    let rules: Vec<ShardRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let text = match Shards::new(&attention(groups), &mesh.parse().unwrap(), &rules) {
        Err(error) => format!("{error}\n"),
        Ok(shards) => {
            let EntryShards { arguments, results } = &shards.entries["decode"];
            let mut text = format!("mesh {}\n", shards.mesh);
            shards.weights.iter().for_each(|(key, sharding)| text += &format!("{key} {sharding}\n"));
            arguments.iter().for_each(|sharding| text += &format!("takes {sharding}\n"));
            results.iter().for_each(|sharding| text += &format!("gives {sharding}\n"));
            shards.notes.iter().for_each(|note| text += &format!("{note}\n"));
            text
        }
    };
    expected.assert_eq(&text);
}

#[test]
fn shard_by_the_names_of_axes() {
    // Tracewright partitions a weight over a whole mesh axis, by the outermost axis of the weight's
    // rows.
    check_shards(
        3,
        "data=5,model=2",
        &["K=model", "S=data"],
        expect_file!["shard_by_the_names_of_axes-1.txt"],
    );
    // If a mesh axis has more devices than the model has key heads, the rest of the mesh axis
    // divides the query heads.
    check_shards(4, "model=4", &["K=model"], expect_file!["shard_by_the_names_of_axes-2.txt"]);
    // If the number of query heads per key head is not divisible by the rest, the query heads stay
    // whole.
    check_shards(3, "model=4", &["K=model"], expect_file!["shard_by_the_names_of_axes-3.txt"]);
    // If only a part of the rest divides the query heads, Tracewright uses this part.
    check_shards(2, "model=8", &["K=model"], expect_file!["shard_by_the_names_of_axes-4.txt"]);
}

#[test]
fn shard_refuses_what_does_not_divide() {
    check_shards(3, "model=3", &["N=model"], expect_file!["shard_refuses_what_does_not_divide-1.txt"]);
    check_shards(3, "model=2", &["F=model"], expect_file!["shard_refuses_what_does_not_divide-2.txt"]);
    check_shards(3, "model=2", &["K=data"], expect_file!["shard_refuses_what_does_not_divide-3.txt"]);
    check_shards(
        3,
        "model=2",
        &["K=model", "K,N=model"],
        expect_file!["shard_refuses_what_does_not_divide-4.txt"],
    );
    check_shards(3, "model=2", &["E=model"], expect_file!["shard_refuses_what_does_not_divide-5.txt"]);
    check_shards(3, "model=20", &["K,S=model"], expect_file!["shard_refuses_what_does_not_divide-6.txt"]);
}

/// A layer with `experts` experts of the same size. A router weights the outputs of the experts.
fn mixture(experts: usize) -> Trace {
    let text = format!(
        r#"entry @decode {{
  %0 = input 0 "x" () : f32[5,8] {{S,D}} from "model" at "toy.rs":1
  %1 = parameter "router" () : f32[{experts},8] {{X,D}} from "model" at "toy.rs":1
  %2 = parameter "experts.up" () : f32[{experts},12,8] {{X,F,D}} from "model" at "toy.rs":1
  %3 = parameter "experts.down" () : f32[{experts},8,12] {{X,D,F}} from "model" at "toy.rs":1
  %4 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32 (%0, %1) : f32[5,{experts}] {{S,X}} from "model" at "toy.rs":1
  %5 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[2] element=f32 (%0, %2) : f32[5,{experts},12] {{S,X,F}} from "model" at "toy.rs":1
  %6 = dot_general left_batch=[1] right_batch=[0] left_contract=[2] right_contract=[2] element=f32 (%5, %3) : f32[{experts},5,8] {{X,S,D}} from "model" at "toy.rs":1
  %7 = dot_general left_batch=[0] right_batch=[1] left_contract=[1] right_contract=[0] element=f32 (%4, %6) : f32[5,8] {{S,D}} from "model" at "toy.rs":1
  return %7 "y"
}}
"#
    );
    text.parse().unwrap()
}

/// Checks expert parallelism with a first rule that applies only to even parts. `whole` is whether
/// each device has the weights of all experts without the first rule.
fn check_experts(experts: usize, rules: &[&str], whole: bool, expected: &ExpectFile) {
    let rules = rules.iter().map(|rule| ShardRule { if_even: rule.contains('X'), ..rule.parse().unwrap() });
    let (trace, rules) = (mixture(experts), rules.collect::<Vec<_>>());
    assert_eq!(leaves_experts_whole(&trace, &rules[1..]), whole, "{rules:?}");
    let shards = Shards::new(&trace, &"model=4".parse().unwrap(), &rules).unwrap();
    let module = xla(&expand(&trace).unwrap(), "decode", &Target::xla(), Some(&shards)).unwrap();
    let mut text = String::new();
    shards.notes.iter().for_each(|note| text += &format!("{note}\n"));
    for one in shards.collectives(&trace.functions[0]).collectives {
        text += &format!("{} of {} among {}\n", one.kind, one.ty, one.devices);
    }
    let frame = |line: &&str| !line.starts_with("    ");
    module.text_without_locs.lines().filter(frame).for_each(|line| text += &format!("{line}\n"));
    expected.assert_eq(&text);
}

#[test]
fn shard_whole_experts_where_their_number_allows() {
    let even = expect_file!["shard_whole_experts_where_their_number_allows-1.txt"];
    // The rule for F has no effect, because the devices divide the number of experts.
    for (rules, whole) in [(&["X=model", "F=model"][..], false), (&["X=model"], true)] {
        check_experts(8, rules, whole, &even);
    }
    check_experts(
        6,
        &["X=model", "F=model"],
        false,
        &expect_file!["shard_whole_experts_where_their_number_allows-2.txt"],
    );
    check_experts(
        6,
        &["X=model"],
        true,
        &expect_file!["shard_whole_experts_where_their_number_allows-3.txt"],
    );
}
