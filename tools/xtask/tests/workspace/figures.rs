//! Figures that two documents have.

use std::fs;

use crate::repository;

/// The cells of the first row of a table that begins with these cells.
fn row<'a>(page: &'a str, begins: &str) -> Vec<&'a str> {
    let line = page.lines().find(|line| line.starts_with(begins));
    let line = line.unwrap_or_else(|| panic!("no row begins with {begins:?}"));
    line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('*')).collect()
}

#[test]
fn the_readme_has_the_figures_of_the_page_about_performance() {
    let read = |path: &str| {
        let text = fs::read_to_string(repository().join(path));
        text.unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let (readme, page) = (read("README.md"), read("docs/performance.md"));
    let header = row(&page, "| measurement | aim |");
    let column = header.iter().position(|cell| *cell == "AVX2 (AMD)").expect("a column for AVX2");
    // The first number of a cell is in bf16, relative to llama.cpp.
    let avx2 = |begins: &str| row(&page, begins)[column].split(',').next().unwrap_or_default().to_owned();
    let quality = row(&page, "| `q8` | ");
    let figures = [
        format!("prompts of 128 tokens {} times as fast as llama.cpp", avx2("| prefill 128, ")),
        format!("writes {} times as fast", avx2("| decode, bf16 | ").replace('–', " to ")),
        format!("(KL {} beside {})", quality[2], quality[6]),
    ];
    for figure in figures {
        assert!(readme.contains(&figure), "README.md lacks \"{figure}\", as in docs/performance.md");
    }
    let on_gpu = "a decode call of Llama 3.2 1B takes 0.99 ms through XLA";
    assert!(page.contains(on_gpu) && readme.replace(['[', ']'], "").contains(on_gpu));
}
