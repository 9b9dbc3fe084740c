//! House rules of the workspace: dependencies of crates, forbidden words, contents of packages.

mod arms;
mod circles;
mod floors;
mod nouns;
mod packages;
mod prose;

use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout").to_owned()
}
