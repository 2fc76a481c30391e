//! Ten thousand tasks that sleep one second each: how late do they wake, and what do they cost?
//!
//! `cargo run --release --example timers --no-default-features`

use std::time::{Duration, Instant};

use wakeloop::runtime::Runtime;
use wakeloop::runtime::time::sleep;

const TASKS: usize = 10_000;
const SLEEP: Duration = Duration::from_secs(1);

fn main() -> std::io::Result<()> {
    let rt = Runtime::new()?;
    let before = resident_kib();
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            rt.spawn(async {
                let due = Instant::now() + SLEEP;
                sleep(SLEEP).await;
                due.elapsed()
            })
        })
        .collect();
    let spawned = start.elapsed();
    std::thread::sleep(SLEEP / 2);
    let during = resident_kib();

    let mut late = Vec::with_capacity(TASKS);
    rt.block_on(async {
        for task in tasks {
            late.extend(task.await);
        }
    });
    let total = start.elapsed();
    late.sort();
    let mean = late.iter().sum::<Duration>() / late.len() as u32;
    println!("tasks          {}", late.len());
    println!("time to spawn  {spawned:?} ({:?} each)", spawned / TASKS as u32);
    println!("total          {total:?}");
    println!("late, mean     {mean:?}");
    println!("late, p99      {:?}", late[late.len() * 99 / 100]);
    println!("late, worst    {:?}", late[late.len() - 1]);
    if let (Some(before), Some(during)) = (before, during) {
        let bytes = during.saturating_sub(before) * 1024;
        println!("memory         {} KiB ({} bytes a task)", bytes / 1024, bytes / TASKS as u64);
    }
    Ok(())
}

/// Linux only: the resident set of this process.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
