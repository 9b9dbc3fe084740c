//! Short names of nodes, for drawings and tables with little room.

/// `model.layers.0–4, 6`. Keys that do not end with a number stay.
pub fn spans(keys: &[String]) -> String {
    let mut found: Vec<(&str, Option<[usize; 2]>)> = Vec::new();
    for key in keys {
        let (stem, number) = match key.rsplit_once('.').map(|(stem, last)| (stem, last.parse::<usize>())) {
            Some((stem, Ok(number))) => (stem, Some(number)),
            _ => (key.as_str(), None),
        };
        match (found.last_mut(), number) {
            (Some((last, Some([_, end]))), Some(number)) if *last == stem && *end + 1 == number => {
                *end = number
            }
            _ => found.push((stem, number.map(|number| [number; 2]))),
        }
    }
    let mut text = String::new();
    let mut before = None;
    for (stem, numbers) in found {
        text.push_str(if text.is_empty() { "" } else { ", " });
        if before.replace(stem) != Some(stem) {
            text.push_str(stem);
            text.push_str(if numbers.is_some() { "." } else { "" });
        }
        match numbers {
            Some([start, end]) if start == end => text.push_str(&start.to_string()),
            Some([start, end]) => text.push_str(&format!("{start}–{end}")),
            None => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_follow_each_other_are_one_span() {
        let keys =
            |numbers: &[usize]| numbers.iter().map(|n| format!("model.layers.{n}")).collect::<Vec<_>>();
        assert_eq!(spans(&keys(&[0, 1, 2, 4, 6, 7])), "model.layers.0–2, 4, 6–7");
        assert_eq!(spans(&keys(&[3])), "model.layers.3");
        assert_eq!(spans(&["towers.left".into(), "towers.right".into()]), "towers.left, towers.right");
    }
}
