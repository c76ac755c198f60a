//! Plots of one scenario, each as the text of an SVG.

use anyhow::Context;
use clap::ValueEnum;
use plotters::{coord::Shift, prelude::*};

use crate::{latency::Latency, path::Kind, report::short, statistics::Middle};

/// Of what is no path that there is: an older one, or what stands in the place of one.
const OTHER: RGBColor = RGBColor(0x8c, 0x8c, 0x8c);
/// Width of every plot.
const WIDTH: u32 = 460;
/// Height of a plot of latencies, and of one bar.
const HEIGHT: u32 = 300;
const BAR: u32 = 24;
/// Height of what stands above and below the bars.
const AROUND: u32 = 62;
/// Steps of a curve between 90 and 99 percent, and so on.
const STEPS: u32 = 20;
const TEXT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One path in a plot.
pub struct Row<'a, T> {
    /// Name of the path.
    pub path: &'a str,
    /// What is drawn of it.
    pub of: T,
}

/// The colour of a path, as CSS has it.
pub fn colour(path: &str) -> String {
    let RGBColor(red, green, blue) = rgb(path);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// A path has one colour in all runs: ours are blue and green, what has nothing between is black.
fn rgb(path: &str) -> RGBColor {
    match Kind::from_str(path, false) {
        Ok(Kind::Direct) => RGBColor(0x1c, 0x1c, 0x1c),
        Ok(Kind::NginxChain) => RGBColor(0xd6, 0x27, 0x28),
        Ok(Kind::MinimalH2) => RGBColor(0xf0, 0xa3, 0x0a),
        Ok(Kind::MinimalH2All) => RGBColor(0x8f, 0x9a, 0x00),
        Ok(Kind::MinimalWebsocket) => RGBColor(0xf4, 0xd8, 0x3f),
        Ok(Kind::MinimalQuic) => RGBColor(0xf7, 0xb6, 0x9c),
        Ok(Kind::HaproxyChain) => RGBColor(0x8c, 0x4a, 0x2f),
        Ok(Kind::Rathole) => RGBColor(0x7b, 0x2d, 0xa8),
        Ok(Kind::Ssh) => RGBColor(0xe3, 0x4f, 0xb0),
        Ok(Kind::Remotedialer) => RGBColor(0xb3, 0x9d, 0xdb),
        Ok(Kind::TowlineH2) => RGBColor(0x1f, 0x5f, 0xd0),
        Ok(Kind::TowlineWebsocket) => RGBColor(0x3f, 0xb8, 0xe8),
        Ok(Kind::TowlineQuic) => RGBColor(0x12, 0x8a, 0x4a),
        Ok(Kind::TowlineHop) => RGBColor(0x00, 0x3f, 0x5c),
        Err(_) => OTHER,
    }
}

/// A bar for each path: the median, with a line from the least to the most.
///
/// # Errors
/// A fault of the library.
pub fn bars(title: &str, rows: &[Row<Middle>]) -> anyhow::Result<String> {
    let most = rows.iter().map(|row| row.of.most).fold(0.0, f64::max);
    let height = AROUND + BAR * u32::try_from(rows.len())?;
    svg(height, |area| {
        // Room for the number behind the longest bar.
        let right = if most > 0.0 { most * 1.3 } else { 1.0 };
        let mut chart = ChartBuilder::on(area)
            .caption(title, (TEXT, 18))
            .margin(6)
            .x_label_area_size(24)
            .y_label_area_size(130)
            // Segments are counted with the end.
            .build_cartesian_2d(0.0..right, (0..rows.len().saturating_sub(1)).into_segmented())?;
        // The first path is at the top.
        let row = |from_below: usize| &rows[rows.len() - 1 - from_below];
        let name = |at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(n) if *n < rows.len() => row(*n).path.to_owned(),
            _ => String::new(),
        };
        let number = |value: &f64| short(*value);
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_labels(5)
            .y_labels(rows.len())
            .x_label_formatter(&number)
            .y_label_formatter(&name)
            .label_style((TEXT, 15))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for at in 0..rows.len() {
            let Row { path, of: Middle { median, least, most, .. } } = *row(at);
            let (below, above) = (SegmentValue::Exact(at), SegmentValue::Exact(at + 1));
            let mut bar = Rectangle::new([(0.0, below), (median, above)], rgb(path).mix(0.8).filled());
            bar.set_margin(4, 4, 0, 0);
            chart.draw_series([bar])?;
            let middle = || SegmentValue::CenterOf(at);
            chart.draw_series([PathElement::new([(least, middle()), (most, middle())], BLACK.stroke_width(2))])?;
            let label = EmptyElement::at((most, middle())) + Text::new(short(median), (6, -6), (TEXT, 15));
            chart.draw_series([label])?;
        }
        Ok(())
    })
}

/// A curve for each path: how long all but one in ten, in a hundred, in a thousand took at most. It ends where there
/// are too few requests to say more. Both axes are logarithmic. `None` where there is nothing to draw.
///
/// # Errors
/// A fault of the library.
pub fn latencies(title: &str, rows: &[Row<Latency>]) -> anyhow::Result<Option<String>> {
    let curves: Vec<_> = rows.iter().map(|row| (row.path, curve(&row.of))).filter(|(_, c)| c.len() > 1).collect();
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let (right, top) = points().fold((1.0, 1.0), |(x, y): (f64, f64), point| (x.max(point.0), y.max(point.1)));
    let least = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    if !least.is_finite() {
        return Ok(None);
    }
    let drawn = svg(HEIGHT, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, (TEXT, 18))
            .margin(6)
            .margin_right(16)
            .x_label_area_size(24)
            .y_label_area_size(60)
            // A step that is the end itself is shown too.
            .build_cartesian_2d((0.0..right + 0.02).step(1.0), (least / 1.5..top * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .x_label_formatter(&|nines| percent(*nines))
            .y_label_formatter(&|us| time(*us))
            .label_style((TEXT, 15))
            .light_line_style(BLACK.mix(0.06))
            .bold_line_style(BLACK.mix(0.15))
            .draw()?;
        for (path, curve) in curves {
            chart.draw_series(LineSeries::new(curve, rgb(path).stroke_width(2)))?;
        }
        Ok(())
    })?;
    Ok(Some(drawn))
}

/// Points of how many nines (1 is 90 percent) and microseconds.
fn curve(latency: &Latency) -> Vec<(f64, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
    let most = (latency.len().max(1) as f64).log10();
    let steps = (0..).map(|step| f64::from(step) / f64::from(STEPS)).take_while(|nines| *nines < most);
    let at = |nines: f64| {
        #[expect(clippy::cast_precision_loss, reason = "two minutes at most")]
        let us = latency.at(1.0 - 10f64.powf(-nines))?.max(1) as f64;
        Some((nines, us))
    };
    steps.chain([most]).filter_map(at).collect()
}

fn percent(nines: f64) -> String {
    match nines {
        nines if nines < 0.5 => "least".to_owned(),
        nines if nines < 1.5 => "90 %".to_owned(),
        nines if nines < 2.5 => "99 %".to_owned(),
        nines => format!("99.{} %", "9".repeat((1..9).filter(|n| f64::from(*n) + 1.5 <= nines).count())),
    }
}

/// A time in microseconds as text of a few characters.
fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1e3 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", (value * 100.0).round() / 100.0)
}

fn svg(height: u32, draw: impl FnOnce(&Area) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&area)?;
        area.present().context("a plot")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<T>(path: &str, of: T) -> Row<'_, T> {
        Row { path, of }
    }

    #[test]
    fn colours_of_all_paths_can_be_told_apart() {
        let paths = || Kind::value_variants().iter().map(|kind| rgb(kind.name())).chain([OTHER]);
        for (place, one) in paths().enumerate() {
            for other in paths().skip(place + 1) {
                let apart = |a: u8, b: u8| f64::from(a.abs_diff(b)).powi(2);
                let apart = (apart(one.0, other.0) + apart(one.1, other.1) + apart(one.2, other.2)).sqrt();
                assert!(apart > 60.0, "{one:?} {other:?}: {apart}");
            }
        }
        assert_eq!((colour("towline-h2"), colour("verifier")), ("#1f5fd0".to_owned(), "#8c8c8c".to_owned()));
    }

    #[test]
    fn a_bar_for_each_path_is_as_long_as_its_median() {
        let middle = |values: &[f64]| Middle::of(values.to_vec()).unwrap();
        let text = bars("mb_per_s", &[row("ssh", middle(&[100.0])), row("rathole", middle(&[200.0, 190.0, 210.0]))]);
        let text = text.unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        let width = |path: &str| -> f64 {
            let bar = text.split("<rect").find(|rect| rect.to_lowercase().contains(&colour(path))).unwrap();
            bar.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        assert!((1.9..2.1).contains(&(width("rathole") / width("ssh"))), "{text}");
        assert!(text.contains("mb_per_s") && text.contains("\nssh\n") && text.contains("\n200\n"), "{text}");
    }

    #[test]
    fn a_curve_goes_as_far_as_there_are_requests_to_say_it() {
        let latency = Latency::from(vec![(100, 900), (1000, 90), (5000, 10)]);
        let points = curve(&latency);
        assert_eq!((points[0], points.last().map(|point| point.0)), ((0.0, 100.0), Some(3.0)));
        assert!(points.iter().any(|(nines, us)| *nines > 1.0 && *nines < 2.0 && (999.0..1002.0).contains(us)));
        assert!(points.last().unwrap().1 >= 5000.0);
        let text = latencies("latency", &[row("a", latency)]).unwrap().unwrap();
        assert!(text.contains("polyline") && text.contains("99.9 %") && text.contains("1 ms"), "{text}");
        assert!(latencies("latency", &[row("a", Latency::default())]).unwrap().is_none());
    }

    #[test]
    fn axes_are_readable() {
        assert_eq!([0.0, 1.0, 2.0, 3.0, 4.0].map(percent), ["least", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert_eq!([40.0, 1500.0, 2e6].map(time), ["40 us", "1.5 ms", "2 s"]);
    }

    #[test]
    fn nothing_at_all_has_bars_too() {
        assert!(bars("failed", &[row("a", Middle::of(vec![0.0]).unwrap())]).unwrap().contains("<svg"));
    }
}
