//! Tables for people, JSON for programs.

use std::fmt::Write as _;
use std::path::Path;

use crate::api::{Clock, Kind, Scenario};
use crate::harness::Sample;

/// One scenario on all runtimes.
pub struct Row {
    kind: Kind,
    name: &'static str,
    by: Clock,
    peers: Vec<Peer>,
}

struct Peer {
    name: &'static str,
    wall_ns: f64,
    cpu_ns: f64,
    /// Their median over ours; above 1 we are faster. Rounds are interleaved, but not paired: the processors that the
    /// threads got matter more than the time between two rounds.
    wall_ratio: f64,
    cpu_ratio: f64,
}

impl Peer {
    fn ratio(&self, by: Clock) -> f64 {
        if by == Clock::Cpu { self.cpu_ratio } else { self.wall_ratio }
    }
}

impl Row {
    pub fn new(kind: Kind, scenario: &Scenario, names: &[&'static str], samples: &[Vec<Sample>]) -> Row {
        let middle = |samples: &[Sample], of: fn(&Sample) -> f64| median(samples.iter().map(of));
        let peers = names.iter().zip(samples).map(|(name, theirs)| {
            let [(wall_ns, wall_ratio), (cpu_ns, cpu_ratio)] =
                [|sample: &Sample| sample.wall, |sample: &Sample| sample.cpu].map(|of| {
                    let [theirs, ours] = [theirs, &samples[0]].map(|samples| middle(samples, of));
                    (theirs, theirs / ours.max(1e-9))
                });
            Peer { name, wall_ns, cpu_ns, wall_ratio, cpu_ratio }
        });
        Row { kind, name: scenario.name, by: scenario.by, peers: peers.collect() }
    }

    pub fn print(&self) {
        let mut line = format!("{:<26}", self.name);
        for (index, peer) in self.peers.iter().enumerate() {
            let time = if self.by == Clock::Cpu { peer.cpu_ns } else { peer.wall_ns };
            let _ = write!(line, " {:>11}", nanos(time));
            if index > 0 {
                let mark = if peer.ratio(self.by) < 0.9 { '!' } else { ' ' };
                let _ = write!(line, " {:>6.2}{mark}{:>6.2}", peer.ratio(self.by), peer.cpu_ratio);
            }
        }
        println!("{line}{}", if self.by == Clock::Cpu { "  (CPU time)" } else { "" });
    }
}

pub fn heading(kind: Kind, names: &[&str]) {
    println!("\n{}", describe(kind));
    let mut line = format!("{:<26}", "time per repetition");
    for (index, name) in names.iter().enumerate() {
        let _ = write!(line, " {name:>11}");
        if index > 0 {
            let _ = write!(line, " {:>6} {:>6}", "ratio", "cpu");
        }
    }
    println!("{line}");
}

/// Geometric means over the scenarios, where variants of one scenario count as one.
pub fn summary(kind: Kind, rows: &[Row]) {
    let rows: Vec<_> = rows.iter().filter(|row| row.kind == kind).collect();
    let Some(first) = rows.first() else { return };
    for (index, peer) in first.peers.iter().enumerate().skip(1) {
        let mut scenarios: Vec<(&str, Vec<f64>)> = Vec::new();
        for row in &rows {
            let ratio = row.peers[index].ratio(row.by);
            match scenarios.last_mut() {
                Some((number, ratios)) if *number == &row.name[..2] => ratios.push(ratio),
                _ => scenarios.push((&row.name[..2], vec![ratio])),
            }
        }
        scenarios.sort_by_key(|(number, _)| *number);
        let means: Vec<_> = scenarios.iter().map(|(_, ratios)| geometric_mean(ratios)).collect();
        let below = rows.iter().filter(|row| row.peers[index].ratio(row.by) < 0.9).map(|row| row.name);
        println!(
            "{} scenarios against {}: geometric mean {:.2}, below 0.9: {:?}",
            means.len(),
            peer.name,
            geometric_mean(&means),
            below.collect::<Vec<_>>()
        );
    }
}

pub fn write_json(path: &Path, rows: &[Row]) -> std::io::Result<()> {
    let mut text = String::from("[\n");
    for (index, row) in rows.iter().enumerate() {
        for (place, peer) in row.peers.iter().enumerate() {
            let last = index + 1 == rows.len() && place + 1 == row.peers.len();
            let _ = writeln!(
                text,
                r#"  {{"scenario": "{}", "runtime": "{}", "workers": {}, "wall_ns": {:.1}, "cpu_ns": {:.1}, "wall_ratio": {:.4}, "cpu_ratio": {:.4}, "by": "{}"}}{}"#,
                row.name,
                peer.name,
                workers(row.kind),
                peer.wall_ns,
                peer.cpu_ns,
                peer.wall_ratio,
                peer.cpu_ratio,
                if row.by == Clock::Cpu { "cpu" } else { "wall" },
                if last { "" } else { "," }
            );
        }
    }
    text.push_str("]\n");
    write(path, &text)
}

/// Writes a file; makes its folder if needed.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

/// Bytes of memory that this process has now.
pub fn resident_memory() -> f64 {
    status("VmRSS:")
}

/// The most memory that this process ever had.
pub fn peak_memory() -> f64 {
    status("VmHWM:")
}

fn status(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0
}

fn describe(kind: Kind) -> String {
    match kind {
        Kind::Workers(1) => "1 worker".into(),
        Kind::Workers(workers) => format!("{workers} workers"),
        Kind::CurrentThread => "current thread".into(),
    }
}

pub fn workers(kind: Kind) -> usize {
    match kind {
        Kind::Workers(workers) => workers,
        Kind::CurrentThread => 0,
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

fn nanos(nanos: f64) -> String {
    match nanos {
        n if n < 1e3 => format!("{n:.1} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}
