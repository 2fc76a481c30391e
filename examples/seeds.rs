//! A lost wake-up that a seed finds: a task looks at a flag, and waits to be notified after another await.
//!
//! `cargo run --example seeds --no-default-features`

use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use wakeloop::runtime::sync::Notify;
use wakeloop::runtime::{spawn, testing, time};

#[derive(Default)]
struct Job {
    done: AtomicBool,
    notify: Notify,
}

async fn wait_for_the_job() {
    let job = Arc::new(Job::default());
    let worker = job.clone();
    spawn(async move {
        time::sleep(Duration::from_secs(60)).await;
        worker.done.store(true, SeqCst);
        worker.notify.notify_waiters();
    });
    time::sleep(Duration::from_secs(30)).await;
    if !job.done.load(SeqCst) {
        // The progress report takes half a minute. If the job ends meanwhile, nobody waits for the notification yet.
        time::sleep(Duration::from_secs(30)).await;
        job.notify.notified().await;
    }
}

fn main() {
    let fails = |seed: &u64| catch_unwind(|| testing::run(*seed, wait_for_the_job())).is_err();
    let failing: Vec<u64> = (0..20).filter(fails).collect();
    println!("{} of 20 seeds end in a deadlock: {failing:?}", failing.len());
    if let Some(seed) = failing.first() {
        println!("the seed {seed} again: {}", if fails(seed) { "a deadlock" } else { "no deadlock" });
    }
}
