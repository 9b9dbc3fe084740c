//! Prints hashes of the module text of every preset for every kind of target.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracewright_tests::modules::hashes(true)?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
