//! The workspace itself: which crate may need which, what it may say, what its packages have in them.

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
