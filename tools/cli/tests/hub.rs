//! Models by name, from a server of our own that speaks the hub's protocol.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::server::{COMMIT, Fault, Server};
use crate::support::*;

fn online(arguments: &[&str], server: &Server, home: &Path) -> Command {
    let mut command = bare(arguments);
    command.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", server.endpoint()).env("HF_HOME", home);
    command
}

/// The files of a small model.
fn llama() -> Vec<(&'static str, Vec<u8>)> {
    let read = |name| (name, fs::read(fixture("llama-untied").join(name)).unwrap());
    vec![read("config.json"), read("model.safetensors"), ("README.md", b"# Llama".to_vec())]
}

#[test]
fn a_name_is_downloaded_once() {
    let (server, home) = (Server::of("org/name", llama()), folder());
    let plan = |model: &str| succeed(online(&["plan", model], &server, home.path()).args(SMALL));
    let said = plan("org/name");
    let cache = home.path().join("hub");
    let downloading = format!("downloading org/name from {} into {}\n", server.endpoint(), cache.display());
    assert!(said.err.starts_with(&downloading), "{}", said.err);
    let snapshot = cache.join("models--org--name/snapshots").join(COMMIT);
    let mut names: Vec<_> =
        fs::read_dir(&snapshot).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors"]);
    // As if the files were named.
    let of_files = succeed(bare(&["plan", text(&fixture("llama-untied"))]).args(SMALL));
    // The last line is about the machine's free memory now.
    let plan_of = |ran: &Ran| ran.out.split("\nmachine ").next().unwrap().to_owned();
    assert_eq!(plan_of(&said), plan_of(&of_files));
    let asked = server.requests();
    assert!(!plan("org/name").err.contains("downloading"));
    assert_eq!(server.requests(), asked);

    let list = |more: &[&str]| succeed(online(&["models"], &server, home.path()).args(more)).out;
    let table = list(&[]);
    assert!(table.starts_with("org/name ") && table.contains(" main "), "{table}");
    assert!(table.ends_with("  safetensors\n"), "{table}");
    let json: Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!(json["models"][0]["snapshots"][0]["path"], text(&snapshot));
    let fetched = list(&["--fetch", "org/name", "org/name@main"]);
    assert_eq!(fetched, format!("{0}\n{0}\n", text(&snapshot)));
    assert!(server.requests() > asked);

    let said = refused(
        &mut online(&["models", "--fetch", "name"], &server, home.path()),
        2,
        &["`name` is not a model name"],
    );
    assert!(said.out.is_empty());
    refused(
        &mut online(&["plan", "org/nam"], &server, home.path()),
        1,
        &["TW1102", "does not list a model `org/nam`", "HF_TOKEN"],
    );
    refused(
        &mut online(&["plan", "org/name:Q4"], &server, home.path()),
        1,
        &["TW1103", "no file `Q4`", "README.md"],
    );
    let empty = folder();
    let none = succeed(&mut online(&["models"], &server, empty.path()));
    assert_eq!(none.out, format!("no models in {}\n", empty.path().join("hub").display()));
}

#[test]
fn ctrl_c_leaves_what_arrived() {
    let (server, home) = (Server::of("org/name", llama()), folder());
    server.set(Fault::Stall(1000));
    let mut command = online(&["plan", "org/name"], &server, home.path());
    let mut child = spawn(command.args(SMALL));
    let part = home.path().join("hub/models--org--name/blobs");
    let part = part.join(format!("{}.incomplete", server.hash("model.safetensors")));
    let length = || fs::metadata(&part).map_or(0, |part| part.len());
    wait_while_runs(&mut child, "a part of the weights", || length() == 1000);
    interrupt(&child);
    interrupted(child);
    assert_eq!(length(), 1000);
    server.set(Fault::None);
    succeed(online(&["plan", "org/name"], &server, home.path()).args(SMALL));
    assert_eq!(server.starts(), [1000]);
}
