//! The metrics of this process for monitoring systems, as families: those of its open loops, and of the Rust runtime.
//! [`text`] writes them in Prometheus' format.

use std::fmt::{self, Display, Write as _};

use crate::bridge::runtime;
use crate::clock::monotonic_nanos;
use crate::histogram::{self, Snapshot};
use crate::kernel::core::probe::metrics::ADDED;
use crate::kernel::core::probe::registry;
use crate::metrics::{Metric, Table, Value};

/// The bounds of a histogram's buckets here are each four times the one before: every eighth of its own.
const COARSE: usize = 8;

type Labels = Vec<(&'static str, String)>;

/// All samples of one name. A counter's name is without `_total`.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) metric: &'static Metric,
    pub(crate) samples: Vec<(Labels, Sample)>,
}

#[derive(Debug)]
pub(crate) enum Sample {
    Number(u64),
    Seconds(f64),
    Histogram(Box<Snapshot>),
}

/// The metrics of all open loops of this process, and of the runtime if it has started. With `pid`, each sample has the
/// number of the process.
pub(crate) fn families(pid: bool) -> Vec<Family> {
    let mut families = Vec::new();
    let common: Labels = pid.then(|| ("pid", std::process::id().to_string())).into_iter().collect();
    let with = |name, value| common.iter().cloned().chain([(name, value)]).collect::<Labels>();
    for view in registry::loops(monotonic_nanos()) {
        let labels = with("loop", view.name);
        add(&mut families, "wakeloop_eventloop_", &view.figures, &labels);
        let added = [Value::Number(view.running.into()), Value::Time(view.figures.active())];
        for (metric, value) in ADDED.iter().zip(added) {
            add_value(&mut families, "wakeloop_eventloop_", metric, value, &labels);
        }
    }
    if let Some(metrics) = runtime::started().map(|runtime| runtime.metrics()) {
        add(&mut families, "wakeloop_runtime_", &metrics, &common);
        for (index, worker) in metrics.per_worker.iter().enumerate() {
            add(&mut families, "wakeloop_runtime_worker_", worker, &with("worker", index.to_string()));
        }
    }
    families
}

fn add<T: Table>(families: &mut Vec<Family>, prefix: &str, table: &T, labels: &Labels) {
    for (metric, value) in T::METRICS.iter().zip(table.values()) {
        add_value(families, prefix, metric, value, labels);
    }
}

fn add_value(
    families: &mut Vec<Family>,
    prefix: &str,
    metric: &'static Metric,
    value: Value<'_>,
    labels: &Labels,
) {
    let seconds = if metric.kind == "histogram" { "_seconds" } else { "" };
    let name = format!("{prefix}{}{seconds}", metric.name());
    let index = families.iter().position(|family| family.name == name).unwrap_or_else(|| {
        families.push(Family { name, metric, samples: Vec::new() });
        families.len() - 1
    });
    let samples = &mut families[index].samples;
    match value {
        Value::Number(number) => samples.push((labels.clone(), Sample::Number(number))),
        Value::Time(time) => samples.push((labels.clone(), Sample::Seconds(time.as_nanos() as f64 / 1e9))),
        Value::Histogram(histogram) => {
            samples.push((labels.clone(), Sample::Histogram(Box::new(*histogram))))
        }
        Value::Labelled(numbers) => {
            for (kind, number) in numbers {
                let labels = labels.iter().cloned().chain([("kind", kind.to_owned())]).collect();
                samples.push((labels, Sample::Number(number)));
            }
        }
    }
}

/// The buckets for Prometheus: an upper bound in seconds, and how many durations are below it. The last bound is
/// infinite.
pub(crate) fn coarse(histogram: &Snapshot) -> Vec<(f64, u64)> {
    let bounds = histogram::bounds().map(|bound| bound as f64 / 1e9).chain([f64::INFINITY]);
    let last = histogram.counts.len() - 1;
    let mut count = 0_u64;
    let upto = histogram.counts.iter().map(|more| {
        count = count.saturating_add(*more);
        count
    });
    let buckets = bounds.zip(upto).enumerate();
    buckets.filter(|(index, _)| index % COARSE == 0 || *index == last).map(|(_, bucket)| bucket).collect()
}

/// Writes the families in Prometheus' text format, version 0.0.4.
pub(crate) fn text(families: &[Family]) -> String {
    let mut out = String::new();
    for family in families {
        // Writing to a string does not fail.
        let _ = write_family(&mut out, family);
    }
    out
}

fn write_family(out: &mut String, family: &Family) -> fmt::Result {
    let Metric { kind, help, .. } = family.metric;
    let name = format!("{}{}", family.name, if *kind == "counter" { "_total" } else { "" });
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
    for (labels, sample) in &family.samples {
        let of = |bound: Option<f64>| LabelSet { labels, bound };
        match sample {
            Sample::Number(number) => writeln!(out, "{name}{} {number}", of(None))?,
            Sample::Seconds(seconds) => writeln!(out, "{name}{} {seconds}", of(None))?,
            Sample::Histogram(histogram) => {
                let mut all = 0;
                for (bound, count) in coarse(histogram) {
                    all = count;
                    writeln!(out, "{name}_bucket{} {count}", of(Some(bound)))?;
                }
                writeln!(out, "{name}_sum{} {}", of(None), histogram.sum as f64 / 1e9)?;
                writeln!(out, "{name}_count{} {all}", of(None))?;
            }
        }
    }
    Ok(())
}

/// The labels of a sample, with the bound of a bucket.
struct LabelSet<'a> {
    labels: &'a Labels,
    bound: Option<f64>,
}

impl Display for LabelSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound =
            self.bound.map(|bound| if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() });
        let bound = bound.as_deref().map(|bound| ("le", bound));
        let mut labels =
            self.labels.iter().map(|(name, value)| (*name, value.as_str())).chain(bound).peekable();
        if labels.peek().is_none() {
            return Ok(());
        }
        let mut before = '{';
        for (name, value) in labels {
            write!(f, "{before}{name}=\"{}\"", Escaped(value))?;
            before = ',';
        }
        f.write_char('}')
    }
}

/// The value of a label, escaped as the format says. The names of loops have nothing else that cannot be printed.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\n' => f.write_str("\\n"),
            '"' | '\\' => write!(f, "\\{char}"),
            _ => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::BUCKETS;

    static METRIC: Metric = Metric { field: "x", suffix: "", kind: "histogram", help: "Text" };

    #[test]
    fn histograms_are_cumulative_and_have_powers_of_four() {
        let mut histogram = Snapshot { sum: 3_500_000_000, ..Snapshot::default() };
        for (bucket, count) in [(0, 5), (1, 1), (8, 1), (9, 7), (BUCKETS - 1, 2)] {
            histogram.counts[bucket] = count;
        }
        let buckets = coarse(&histogram);
        assert_eq!(
            buckets.iter().map(|bucket| bucket.1).collect::<Vec<_>>(),
            [5, 7, 14, 14, 14, 14, 14, 14, 14, 14, 16]
        );
        assert!(buckets[..9].iter().zip(&buckets[1..10]).all(|(one, next)| next.0 == 4.0 * one.0));
        let family = Family {
            name: "x".into(),
            metric: &METRIC,
            samples: vec![(vec![], Sample::Histogram(Box::new(histogram)))],
        };
        let text = text(&[family]);
        assert!(
            text.starts_with("# HELP x Text\n# TYPE x histogram\nx_bucket{le=\"0.000131072\"} 5\n"),
            "{text}"
        );
        assert!(text.ends_with("x_bucket{le=\"+Inf\"} 16\nx_sum 3.5\nx_count 16\n"), "{text}");
    }

    #[test]
    fn no_label_can_break_the_text() {
        assert_eq!(Escaped("a\"b\\c\ndé'").to_string(), "a\\\"b\\\\c\\ndé'");
    }
}
