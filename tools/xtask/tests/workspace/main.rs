//! House rules of the workspace: dependencies of crates, forbidden words, contents of packages.

mod arms;
mod circles;
mod figures;
mod nouns;
mod packages;
mod prose;
mod rooms;
mod sizes;

use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the checkout").to_owned()
}
