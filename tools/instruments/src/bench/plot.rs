//! Draws an SVG chart of measurements, with a panel for each measured operation and a bar for each variant.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::table::variant;
use super::{BenchReport, Measured};

const WIDTH: u32 = 900;
const ROW: i32 = 26;
const TITLE: i32 = 34;
/// The horizontal position at which the bars start, in pixels.
const LEFT: i32 = 330;
/// In pixels.
const LONGEST: f64 = 420.0;

pub(super) fn svg(report: &BenchReport) -> String {
    let mut cases: Vec<(&str, Vec<&Measured>)> = Vec::new();
    for measured in &report.cases {
        match cases.iter_mut().find(|(case, _)| *case == measured.label.case) {
            Some((_, all)) => all.push(measured),
            None => cases.push((&measured.label.case, vec![measured])),
        }
    }
    let rows = report.cases.len() as i32;
    let height = rows * ROW + cases.len() as i32 * TITLE + ROW;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height as u32)).into_drawing_area();
        // Drawing into a string cannot fail.
        let _ = draw(&root, report, &cases);
        let _ = root.present();
    }
    text
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(root: &Area<'a>, report: &BenchReport, cases: &[(&str, Vec<&Measured>)]) -> Drawn<'a> {
    let words = |size: i32, place: HPos| {
        ("sans-serif", size)
            .into_text_style(root)
            .pos(Pos::new(place, VPos::Center))
            .color(&RGBColor(40, 40, 40))
    };
    root.fill(&WHITE)?;
    let mut y = 0;
    for (case, all) in cases {
        root.draw(&Text::new(format!("{case}, milliseconds"), (12, y + TITLE / 2), words(17, HPos::Left)))?;
        y += TITLE;
        let longest = all.iter().map(|one| one.seconds.upper_quartile).fold(f64::MIN_POSITIVE, f64::max);
        let x = |seconds: f64| LEFT + (seconds / longest * LONGEST) as i32;
        for one in all {
            let (seconds, middle) = (one.seconds, y + ROW / 2);
            root.draw(&Text::new(variant(one, report), (LEFT - 10, middle), words(14, HPos::Right)))?;
            let bar = [(LEFT, middle - 8), (x(seconds.median), middle + 8)];
            root.draw(&Rectangle::new(bar, RGBColor(76, 120, 168).filled()))?;
            let quartiles = vec![(x(seconds.lower_quartile), middle), (x(seconds.upper_quartile), middle)];
            root.draw(&PathElement::new(quartiles, RGBColor(40, 40, 40).stroke_width(2)))?;
            let rate = one.tokens_per_s.map_or_else(String::new, |rate| format!(", {rate:.1} tokens/s"));
            let number = format!("{:.3}{rate}", seconds.median * 1e3);
            let end = x(seconds.median.max(seconds.upper_quartile)) + 8;
            root.draw(&Text::new(number, (end, middle), words(14, HPos::Left)))?;
            y += ROW;
        }
    }
    let [read, copy] = [report.memory.read, report.memory.copy].map(|rate| rate.median / 1e9);
    let rounds = report.rounds;
    let foot = format!(
        "medians and quartiles of {rounds} rounds in turn; memory: read {read:.1} GB/s, copy {copy:.1} GB/s"
    );
    root.draw(&Text::new(foot, (12, y + ROW / 2), words(13, HPos::Left)))
}
