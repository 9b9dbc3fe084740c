//! Many clients at the same time, a third of which leave in the middle.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";
const ANIMALS: [&str; 6] = ["fox", "owl", "frog", "cat", "dog", "bear"];

fn ask(animal: &str, count: usize) -> Value {
    let content = format!("Tell me a story about a brave {animal}.");
    let messages = json!([{ "role": "user", "content": content }]);
    json!({ "messages": messages, "max_tokens": count, "cache_prompt": false })
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The resident memory of a process, in KiB.
fn memory(serving: &Serving) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", serving.child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// The next number of a simple generator.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// One client: asks, and compares or leaves, until the time is over. Returns how many answers were compared.
fn client(serving: &Serving, whole: &[String], number: u64, end: Instant, left: &AtomicUsize) -> usize {
    let mut state = number;
    let mut compared = 0;
    while Instant::now() < end {
        let (animal, count) = (next(&mut state) % ANIMALS.len(), 1 + next(&mut state) % 60);
        let mut body = ask(ANIMALS[animal], count);
        if next(&mut state).is_multiple_of(3) {
            body["stream"] = json!(true);
            let body = body.to_string();
            let mut stream = serving.connect();
            let length = body.len();
            write!(stream, "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
            let mut some = vec![0; 1 + next(&mut state) % 900];
            let _ = stream.read(&mut some);
            left.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let found = content(&serving.good(PATH, &body));
        assert!(whole[animal].starts_with(&found) && !found.is_empty(), "{found}");
        compared += 1;
    }
    compared
}

#[test]
fn many_clients_lose_no_slot_and_no_memory() {
    // 64 clients of a real chat model for ten minutes in the long form.
    let (clients, seconds) = if is_long() { (64, 600) } else { (16, 9) };
    let serving = if is_long() {
        let model = smollm2().expect("`cargo xtask setup` installs SmolLM2 for the long form");
        Serving::of_sizes(&[text(&model), "--slots", "8"], &["--context", "512", "--chunk", "64"])
    } else {
        Serving::of(&[text(&demo()), "--slots", "4"])
    };
    let whole = ANIMALS.map(|animal| content(&serving.good(PATH, &ask(animal, 60))));
    let left = AtomicUsize::new(0);
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let (compared, memories) = std::thread::scope(|scope| {
        let (serving, whole, left) = (&serving, &whole, &left);
        let threads: Vec<_> =
            (0..clients).map(|i| scope.spawn(move || client(serving, whole, i, end, left))).collect();
        let mut memories = Vec::new();
        // At the end of the second minute of ten, and at the end.
        for at in [seconds / 5, seconds - 1] {
            std::thread::sleep((start + Duration::from_secs(at)).saturating_duration_since(Instant::now()));
            memories.extend(memory(serving));
        }
        (threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>(), memories)
    });
    println!("{compared} answers compared, {left:?} clients left, memory {memories:?} KiB");
    assert!(compared > 20 && left.load(Ordering::Relaxed) > 5, "{compared} {left:?}");
    if let [early, late] = memories[..] {
        // The short form ends while allocators still grow.
        let most = if is_long() { early * 102 / 100 } else { early * 110 / 100 };
        assert!(late <= most, "{early} KiB became {late} KiB");
    }
    wait_until("all slots to be free", || {
        serving.get("/metrics").body.contains("tracewright_answers_open{model=\"demo\"} 0\n")
    });
    let again: Vec<String> = std::thread::scope(|scope| {
        let serving = &serving;
        let ask = |animal| scope.spawn(move || content(&serving.good(PATH, &ask(animal, 60))));
        let threads: Vec<_> = ANIMALS.into_iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(again, whole);
    serving.signal("-TERM");
    assert_eq!(serving.end(), Some(0));
}

/// The names of three models with texts of their own, and their paths.
fn three_models() -> ([(&'static str, PathBuf); 3], Vec<TempDir>) {
    if is_long() {
        let file = |model: Option<PathBuf>| {
            model.expect("`cargo xtask setup` installs SmolLM2 and Gemma 3 for the long form")
        };
        return ([("smollm2", file(smollm2())), ("gemma3", file(gemma3())), ("demo", demo())], Vec::new());
    }
    let without = |layer: usize| {
        let copy = copied_demo();
        edit_tensors(copy.path(), |tensors| {
            let name = format!("model.layers.{layer}.mlp.down_proj.weight");
            tensors.get_mut(&name).unwrap().2.fill(0);
        });
        copy
    };
    let copies = vec![without(0), without(1)];
    let [a, b] = [0, 1].map(|i: usize| copies[i].path().to_owned());
    ([("whole", demo()), ("first", a), ("second", b)], copies)
}

/// One client of three models. Returns how many answers were compared, and how many requests found no memory in time.
fn client_of_all(
    serving: &Serving,
    whole: &[(&str, [String; 6])],
    number: u64,
    end: Instant,
) -> (usize, usize) {
    let (mut state, mut compared, mut crowded) = (number, 0, 0);
    while Instant::now() < end {
        let (name, texts) = &whole[next(&mut state) % whole.len()];
        let (animal, count) = (next(&mut state) % ANIMALS.len(), 1 + next(&mut state) % 40);
        let response = serving.post(COMPLETIONS, &continued(name, animal, count));
        if response.status == 503 {
            assert_eq!(response.error()["code"], "overloaded");
            crowded += 1;
            continue;
        }
        let found = response.json()["choices"][0]["text"].as_str().unwrap().to_owned();
        assert!(texts[animal].starts_with(&found) && !found.is_empty(), "{name}: {found}");
        compared += 1;
    }
    (compared, crowded)
}

const COMPLETIONS: &str = "/v1/completions";

fn continued(model: &str, animal: usize, count: usize) -> Value {
    let prompt = format!("A story about a brave {}:", ANIMALS[animal]);
    json!({ "model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "cache_prompt": false })
}

/// Models are loaded and unloaded while many clients ask for all of them. Each answer is the one of a single run, and the
/// last unloading gives the memory back.
#[test]
fn models_that_come_and_go_give_back_their_memory() {
    let (clients, seconds) = if is_long() { (64, 600) } else { (8, 4) };
    let (models, _copies) = three_models();
    let needs = |(_, path): &(&str, PathBuf)| {
        let mut plan = tracewright(&["plan", text(path), "--batch", "4", "--json"]);
        let plan: Value = serde_json::from_slice(&plan.args(SIZES).output().unwrap().stdout).unwrap();
        plan["running_bytes"].as_u64().unwrap()
    };
    // Not all of them have room.
    let limit = (models.iter().map(needs).sum::<u64>() - 1).to_string();
    let named: Vec<String> = models.iter().map(|(name, path)| format!("{name}={}", text(path))).collect();
    let mut arguments: Vec<&str> = named.iter().map(String::as_str).collect();
    arguments.extend(["--slots", "4", "--memory-limit", &limit]);
    let serving = Serving::of(&arguments);
    let unload = || {
        for (name, _) in &models {
            serving.good("/models/unload", &json!({ "model": name }));
        }
    };
    // Only the first model was ever open.
    serving.good("/models/unload", &json!({ "model": models[0].0 }));
    std::thread::sleep(Duration::from_millis(500));
    let idle = memory(&serving);
    let whole = models.each_ref().map(|(name, _)| {
        let text = |animal: usize| {
            let answer = serving.good(COMPLETIONS, &continued(name, animal, 40));
            answer["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        (*name, [0, 1, 2, 3, 4, 5].map(text))
    });
    assert!(whole[0].1 != whole[1].1 && whole[1].1 != whole[2].1 && whole[2].1 != whole[0].1);
    unload();
    std::thread::sleep(Duration::from_millis(500));
    let before = memory(&serving);
    let end = Instant::now() + Duration::from_secs(seconds);
    let counts: Vec<_> = std::thread::scope(|scope| {
        let (serving, whole) = (&serving, &whole);
        let client = |i| scope.spawn(move || client_of_all(serving, whole, i, end));
        let threads: Vec<_> = (0..clients).map(client).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let compared: usize = counts.iter().map(|(compared, _)| compared).sum();
    let crowded: usize = counts.iter().map(|(_, crowded)| crowded).sum();
    unload();
    let loads = serving.err.lock().unwrap().matches("loading ").count();
    println!("{compared} answers compared, {crowded} found no memory, {loads} loads, {before:?} KiB before");
    assert!(compared > 5 && loads > 3, "{compared} {loads}");
    if let Some(before) = before {
        wait_until("the memory to be given back", || {
            memory(&serving).is_some_and(|after| after <= before * 110 / 100)
        });
        println!("{:?} KiB after, {idle:?} KiB with one model", memory(&serving));
    }
    // Without it, the C library keeps 600 MB after a real model was converted.
    if let Some(idle) = idle.filter(|_| is_long()) {
        wait_until("the memory of conversions", || {
            memory(&serving).is_some_and(|after| after <= idle + (200 << 10))
        });
    }
}
