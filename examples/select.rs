//! Several operations at once in one task: the first that is ready wins, and the others are dropped and tried
//! again.
//!
//! `cargo run --example select --no-default-features`

use std::time::{Duration, Instant};

use wakeloop::runtime::sync::mpsc;
use wakeloop::runtime::time::{interval, sleep, sleep_until};
use wakeloop::runtime::{self, Runtime};
use wakeloop::{join, select};

fn main() -> std::io::Result<()> {
    Runtime::new()?.block_on(async {
        let (sender, mut messages) = mpsc::bounded(8);
        drop(runtime::spawn(async move {
            for word in ["some", "words", "now", "and", "then"] {
                sleep(Duration::from_millis(13)).await;
                if sender.send(word).await.is_err() {
                    return;
                }
            }
        }));
        let mut ticks = interval(Duration::from_millis(10));
        let end = Instant::now() + Duration::from_millis(100);
        loop {
            // All three are cancel-safe: dropped before it is ready, none loses a message or a tick.
            select! {
                message = messages.recv() => match message {
                    Some(word) => println!("{word}"),
                    None => break,
                },
                _ = ticks.tick() => println!("  tick"),
                () = sleep_until(end) => {
                    println!("time is up");
                    break;
                },
            }
        }
        let started = Instant::now();
        join!(sleep(Duration::from_millis(30)), sleep(Duration::from_millis(30)));
        println!("two sleeps at once took {:?}", started.elapsed());
    });
    Ok(())
}
