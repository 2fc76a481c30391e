//! A limit on how long an operation may take: one that is too slow is dropped, with everything it holds.
//!
//! `cargo run --example timeout --no-default-features`

use std::time::Duration;

use wakeloop::runtime::Runtime;
use wakeloop::runtime::time::{sleep, timeout};

/// Prints a line when it is dropped.
struct Held(&'static str);

impl Drop for Held {
    fn drop(&mut self) {
        println!("  {} lets go of what it held", self.0);
    }
}

async fn work(name: &'static str, takes: Duration) -> &'static str {
    let _held = Held(name);
    sleep(takes).await;
    name
}

fn main() -> std::io::Result<()> {
    Runtime::new()?.block_on(async {
        let limit = Duration::from_millis(50);
        for (name, takes) in [("the fast one", 10), ("the slow one", 5000)] {
            match timeout(limit, work(name, Duration::from_millis(takes))).await {
                Ok(name) => println!("{name} was in time"),
                Err(elapsed) => println!("{name}: {elapsed}"),
            }
        }
    });
    Ok(())
}
