//! Downloads from a server of our own that speaks the hub's protocol, with its faults.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod server;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use server::{Fault, Server};
use tempfile::TempDir;
use tracewright_hub::{Hub, HubError, ModelName};

/// The commit of every model here.
const COMMIT: &str = server::COMMIT;

fn small() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"not read".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("model-00001-of-00002.safetensors", vec![1; 300_000]),
        ("model-00002-of-00002.safetensors", vec![2; 5_000]),
        ("model-00003-of-00002.safetensors", vec![3; 10]),
        (
            "model.safetensors.index.json",
            br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#.to_vec(),
        ),
        ("tokenizer.json", b"{\"a\": 1}".to_vec()),
    ]
}

fn hub(server: &Server, cache: &TempDir) -> Hub {
    Hub { cache: cache.path().to_owned(), endpoint: server.endpoint(), token: None, offline: false }
}

fn name(text: &str) -> ModelName {
    ModelName::parse(text).unwrap()
}

fn fetched(hub: &Hub, text: &str) -> Result<PathBuf, HubError> {
    hub.fetch(&name(text), &mut |_| ControlFlow::Continue(()))
}

/// The files below a folder that are none of the cache's own.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_folder_has_what_is_read_and_nothing_else() {
    let server = Server::of("org/name", small());
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    let mut steps = Vec::new();
    let path = hub
        .fetch(&name("org/name"), &mut |at| {
            steps.push((at.done, at.total));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(path, cache.path().join("models--org--name/snapshots").join(COMMIT));
    let expected = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(names(&path), expected);
    assert_eq!(fs::read(path.join("model-00001-of-00002.safetensors")).unwrap(), [1; 300_000]);
    let link = fs::read_link(path.join("config.json")).unwrap();
    // `printf '{}' | git hash-object --stdin`
    assert_eq!(link, Path::new("../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b"));
    assert_eq!(fs::read_to_string(cache.path().join("models--org--name/refs/main")).unwrap(), COMMIT);
    let last = *steps.last().unwrap();
    assert!(
        last.0 == last.1 && steps.windows(2).filter(|pair| pair[1].0 < pair[0].0).count() <= 1,
        "{steps:?}"
    );

    // A second time nobody is asked.
    let asked = server.requests();
    assert_eq!(fetched(&hub, "org/name").unwrap(), path);
    assert_eq!(fetched(&Hub { offline: true, ..hub.clone() }, "org/name@main").unwrap(), path);
    assert_eq!(server.requests(), asked);
    // A file that is gone comes again, and no other.
    fs::remove_file(path.join("model-00002-of-00002.safetensors")).unwrap();
    fs::remove_dir_all(cache.path().join("models--org--name/blobs")).unwrap();
    assert_eq!(fetched(&hub, "org/name").unwrap(), path);
    assert_eq!(fs::read(path.join("model-00002-of-00002.safetensors")).unwrap(), [2; 5_000]);

    let models = hub.models().unwrap();
    assert_eq!((models.len(), models[0].repository.as_str()), (1, "org/name"));
    assert_eq!(models[0].snapshots[0].revisions, ["main"]);
    assert_eq!(models[0].snapshots[0].files, expected);
}

#[test]
fn a_gguf_file_comes_alone() {
    let files = vec![
        ("config.json", b"{}".to_vec()),
        ("a-Q4_0.gguf", vec![4; 70_000]),
        ("sub dir/a-Q8_0.gguf", vec![8; 70_001]),
    ];
    let server = Server::of("org/name", files);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    let path = fetched(&hub, "org/name:a-Q4_0.gguf").unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![4; 70_000]);
    assert_eq!(names(path.parent().unwrap()), ["a-Q4_0.gguf"]);
    let path = fetched(&hub, "org/name:q8_0").unwrap();
    assert!(path.ends_with("sub dir/a-Q8_0.gguf"));
    assert_eq!(fs::read(&path).unwrap(), vec![8; 70_001]);
    let error = fetched(&hub, "org/name:Q2_K").unwrap_err();
    assert!(error.to_string().contains("has no file `Q2_K`"), "{error}");
    assert_eq!(error.help().unwrap(), "select one of the files with `org/name:FILE`");
}

#[test]
fn a_download_that_breaks_off_goes_on() {
    let data: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
    let server = Server::of("org/name", vec![("a.gguf", data.clone())]);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    // Each connection gives 300,000 bytes and ends: the fourth has the rest.
    server.set(Fault::Cut(300_000));
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), data);
    assert_eq!(server.starts(), [0, 300_000, 600_000, 900_000]);

    // A run that ended leaves its part, and the next one goes on from there.
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub { cache: cache.path().to_owned(), ..hub };
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", server.hash("a.gguf")));
    fs::write(&part, &data[..123_456]).unwrap();
    server.set(Fault::None);
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), data);
    assert_eq!(server.starts(), [123_456]);
    assert!(!part.exists());

    // A server that knows no ranges begins again.
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub { cache: cache.path().to_owned(), ..hub };
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", server.hash("a.gguf"))), &data[..77]).unwrap();
    server.set(Fault::NoRanges);
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), data);
}

#[test]
fn a_damaged_file_does_not_appear() {
    let data = vec![7; 50_000];
    let server = Server::of("org/name", vec![("a.gguf", data.clone())]);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    server.set(Fault::Flip);
    let error = fetched(&hub, "org/name").unwrap_err();
    assert!(matches!(&error, HubError::Hash { file, .. } if file == "a.gguf"), "{error}");
    assert!(error.to_string().contains(&server.hash("a.gguf")), "{error}");
    assert!(names(&cache.path().join("models--org--name/blobs")).is_empty());
    assert!(!cache.path().join("models--org--name/snapshots").exists());
    assert!(!cache.path().join("models--org--name/refs").exists());
    // The next run gets it.
    server.set(Fault::None);
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), data);

    // A part with more bytes than the file has is no part of it.
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub { cache: cache.path().to_owned(), ..hub };
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", server.hash("a.gguf"))), vec![7; 50_001]).unwrap();
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), data);
}

#[test]
fn errors_name_the_cause() {
    let server = Server::of("org/name", vec![("a.gguf", vec![1])]);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    let told = |hub: &Hub, text: &str| fetched(hub, text).unwrap_err().to_string();
    let endpoint = server.endpoint();
    assert_eq!(told(&hub, "org/other"), format!("the hub at {endpoint} does not list a model `org/other`"));
    assert_eq!(told(&hub, "org/name@v9"), "the model `org/name` has no revision `v9`");
    let gated = fetched(&hub, "org/gated").unwrap_err();
    assert!(matches!(gated, HubError::NoAccess { with_token: false, .. }), "{gated}");
    assert!(gated.help().unwrap().contains("HF_TOKEN"));
    let with_token = Hub { token: Some("hf_wrong".into()), ..hub.clone() };
    assert!(matches!(fetched(&with_token, "org/gated"), Err(HubError::NoAccess { with_token: true, .. })));
    let with_token = Hub { token: Some(server::TOKEN.into()), ..hub.clone() };
    assert!(fetched(&with_token, "org/gated").unwrap().is_file());
    let offline = Hub { offline: true, ..hub.clone() };
    assert!(told(&offline, "org/name").contains("HF_HUB_OFFLINE"));
    // Nobody listens there.
    let nowhere = Hub { endpoint: "http://127.0.0.1:9".into(), ..hub.clone() };
    assert_eq!(
        told(&nowhere, "org/name"),
        "cannot ask the hub at http://127.0.0.1:9 for the model `org/name`"
    );
    server.set(Fault::Status(418));
    assert!(told(&hub, "org/name").ends_with("responded with the HTTP status 418, expected 200"));
    server.set(Fault::Description("[1]"));
    assert!(told(&hub, "org/name").contains("does not describe a model"));
    // Names that lead out of the cache.
    for bad in ["../../a.gguf", "/a.gguf"] {
        let description = format!(
            r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "{bad}", "size": 1, "blobId": "{COMMIT}"}}]}}"#
        );
        server.set(Fault::Description(description.leak()));
        assert!(told(&hub, "org/name").contains("does not describe a model"), "{bad}");
    }
}

#[test]
fn the_token_stays_with_the_hub() {
    let server = Server::of("org/name", vec![("a.gguf", vec![1; 1000])]);
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub { token: Some(server::TOKEN.into()), ..hub(&server, &cache) };
    // Large files come from another host.
    server.set(Fault::Elsewhere);
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), [1; 1000]);
    assert_eq!(server.tokens_elsewhere(), [None]);
}

#[test]
fn a_download_that_is_stopped_keeps_what_arrived() {
    let server = Server::of("org/name", vec![("a.gguf", vec![1; 2_000_000])]);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    let mut stop = |at: tracewright_hub::Fetched<'_>| {
        if at.done > 500_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(matches!(hub.fetch(&name("org/name"), &mut stop), Err(HubError::Stopped)));
    assert_eq!(fs::read(fetched(&hub, "org/name").unwrap()).unwrap(), [1; 2_000_000]);
    let starts = server.starts();
    assert!(starts.len() == 2 && starts[1] > 500_000, "{starts:?}");
}

#[test]
fn two_runs_at_once_download_once() {
    let server = Server::of("org/name", vec![("a.gguf", vec![1; 2_000_000])]);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, &cache);
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| fetched(&hub, "org/name").unwrap())).collect();
        for run in runs {
            assert_eq!(fs::read(run.join().unwrap()).unwrap(), [1; 2_000_000]);
        }
    });
    assert_eq!(server.starts(), [0]);
}
